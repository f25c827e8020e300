"""The messages of `mrlm.proto`, from its compiled form beside this file; the stub has their types.

Both are made from the folder `src` by `protoc --descriptor_set_out=mrlm/serving/mrlm.binpb
--pyi_out=. mrlm/serving/mrlm.proto`. No Python is generated, which would depend on the version of
the compiler.
"""

from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message_factory import GetMessageClass

_compiled = Path(__file__).with_name("mrlm.binpb").read_bytes()
(_file,) = descriptor_pb2.FileDescriptorSet.FromString(_compiled).file
DESCRIPTOR = descriptor_pool.Default().AddSerializedFile(_file.SerializeToString())
for _name, _type in DESCRIPTOR.message_types_by_name.items():
    globals()[_name] = GetMessageClass(_type)
    globals()[_name].__module__ = __name__
