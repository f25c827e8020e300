"""Clients of the services in `mrlm.proto`, made from its descriptor."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message_factory import GetMessageClass

from mrlm.serving import mrlm_pb2 as pb


def service_stub(channel: grpc.Channel | grpc.aio.Channel, service: str) -> Any:
    """The methods of a service (`Environments` or `Policies`) by name, as gRPC's own compiler makes
    them."""
    found = SimpleNamespace()
    for method in pb.DESCRIPTOR.services_by_name[service].methods:
        sent = "stream" if method.client_streaming else "unary"
        answered = "stream" if method.server_streaming else "unary"
        make = getattr(channel, f"{sent}_{answered}")
        call = make(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=GetMessageClass(method.input_type).SerializeToString,
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        setattr(found, method.name, call)
    return found
