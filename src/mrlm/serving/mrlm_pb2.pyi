from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class InfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InfoReply(_message.Message):
    __slots__ = ("version", "epoch", "environments", "sessions", "max_sessions", "lease_seconds", "max_message_bytes", "draining", "policies", "workers")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENTS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    version: str
    epoch: str
    environments: _containers.RepeatedScalarFieldContainer[str]
    sessions: int
    max_sessions: int
    lease_seconds: float
    max_message_bytes: int
    draining: bool
    policies: _containers.RepeatedScalarFieldContainer[str]
    workers: int
    def __init__(self, version: _Optional[str] = ..., epoch: _Optional[str] = ..., environments: _Optional[_Iterable[str]] = ..., sessions: _Optional[int] = ..., max_sessions: _Optional[int] = ..., lease_seconds: _Optional[float] = ..., max_message_bytes: _Optional[int] = ..., draining: bool = ..., policies: _Optional[_Iterable[str]] = ..., workers: _Optional[int] = ...) -> None: ...

class World(_message.Message):
    __slots__ = ("environment", "arguments_json")
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    environment: str
    arguments_json: str
    def __init__(self, environment: _Optional[str] = ..., arguments_json: _Optional[str] = ...) -> None: ...

class Description(_message.Message):
    __slots__ = ("name", "agents", "max_turns", "train_tasks", "eval_tasks", "reproducible", "counts_turns", "draws")
    NAME_FIELD_NUMBER: _ClassVar[int]
    AGENTS_FIELD_NUMBER: _ClassVar[int]
    MAX_TURNS_FIELD_NUMBER: _ClassVar[int]
    TRAIN_TASKS_FIELD_NUMBER: _ClassVar[int]
    EVAL_TASKS_FIELD_NUMBER: _ClassVar[int]
    REPRODUCIBLE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_TURNS_FIELD_NUMBER: _ClassVar[int]
    DRAWS_FIELD_NUMBER: _ClassVar[int]
    name: str
    agents: _containers.RepeatedScalarFieldContainer[str]
    max_turns: int
    train_tasks: int
    eval_tasks: int
    reproducible: bool
    counts_turns: bool
    draws: bool
    def __init__(self, name: _Optional[str] = ..., agents: _Optional[_Iterable[str]] = ..., max_turns: _Optional[int] = ..., train_tasks: _Optional[int] = ..., eval_tasks: _Optional[int] = ..., reproducible: bool = ..., counts_turns: bool = ..., draws: bool = ...) -> None: ...

class TaskRequest(_message.Message):
    __slots__ = ("world", "seed", "split")
    WORLD_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SPLIT_FIELD_NUMBER: _ClassVar[int]
    world: World
    seed: int
    split: str
    def __init__(self, world: _Optional[_Union[World, _Mapping]] = ..., seed: _Optional[int] = ..., split: _Optional[str] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("content", "role", "agent", "tool_calls_json", "metadata_json", "tool_call_id", "name", "reasoning", "weight")
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_JSON_FIELD_NUMBER: _ClassVar[int]
    METADATA_JSON_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    content: str
    role: str
    agent: str
    tool_calls_json: str
    metadata_json: str
    tool_call_id: str
    name: str
    reasoning: str
    weight: float
    def __init__(self, content: _Optional[str] = ..., role: _Optional[str] = ..., agent: _Optional[str] = ..., tool_calls_json: _Optional[str] = ..., metadata_json: _Optional[str] = ..., tool_call_id: _Optional[str] = ..., name: _Optional[str] = ..., reasoning: _Optional[str] = ..., weight: _Optional[float] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("id", "prompt", "answer_json", "seed", "info_json")
    ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_JSON_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    INFO_JSON_FIELD_NUMBER: _ClassVar[int]
    id: str
    prompt: _containers.RepeatedCompositeFieldContainer[Message]
    answer_json: str
    seed: int
    info_json: str
    def __init__(self, id: _Optional[str] = ..., prompt: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., answer_json: _Optional[str] = ..., seed: _Optional[int] = ..., info_json: _Optional[str] = ...) -> None: ...

class Observation(_message.Message):
    __slots__ = ("messages", "done", "info_json")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    INFO_JSON_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    done: bool
    info_json: str
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., done: bool = ..., info_json: _Optional[str] = ...) -> None: ...

class Reward(_message.Message):
    __slots__ = ("value", "components", "info_json")
    class ComponentsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    VALUE_FIELD_NUMBER: _ClassVar[int]
    COMPONENTS_FIELD_NUMBER: _ClassVar[int]
    INFO_JSON_FIELD_NUMBER: _ClassVar[int]
    value: float
    components: _containers.ScalarMap[str, float]
    info_json: str
    def __init__(self, value: _Optional[float] = ..., components: _Optional[_Mapping[str, float]] = ..., info_json: _Optional[str] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("speakers", "observations", "paid", "rewards", "done", "truncated", "info_json", "state", "board")
    class ObservationsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Observation
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Observation, _Mapping]] = ...) -> None: ...
    class RewardsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Reward
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Reward, _Mapping]] = ...) -> None: ...
    SPEAKERS_FIELD_NUMBER: _ClassVar[int]
    OBSERVATIONS_FIELD_NUMBER: _ClassVar[int]
    PAID_FIELD_NUMBER: _ClassVar[int]
    REWARDS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    INFO_JSON_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    BOARD_FIELD_NUMBER: _ClassVar[int]
    speakers: _containers.RepeatedScalarFieldContainer[str]
    observations: _containers.MessageMap[str, Observation]
    paid: _containers.RepeatedScalarFieldContainer[str]
    rewards: _containers.MessageMap[str, Reward]
    done: bool
    truncated: bool
    info_json: str
    state: str
    board: Board
    def __init__(self, speakers: _Optional[_Iterable[str]] = ..., observations: _Optional[_Mapping[str, Observation]] = ..., paid: _Optional[_Iterable[str]] = ..., rewards: _Optional[_Mapping[str, Reward]] = ..., done: bool = ..., truncated: bool = ..., info_json: _Optional[str] = ..., state: _Optional[str] = ..., board: _Optional[_Union[Board, _Mapping]] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("session", "seq", "open", "reset", "step", "expert", "fork", "close", "state", "render")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EXPERT_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RENDER_FIELD_NUMBER: _ClassVar[int]
    session: str
    seq: int
    open: Open
    reset: Reset
    step: Step
    expert: Expert
    fork: Fork
    close: Close
    state: State
    render: Render
    def __init__(self, session: _Optional[str] = ..., seq: _Optional[int] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., reset: _Optional[_Union[Reset, _Mapping]] = ..., step: _Optional[_Union[Step, _Mapping]] = ..., expert: _Optional[_Union[Expert, _Mapping]] = ..., fork: _Optional[_Union[Fork, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., state: _Optional[_Union[State, _Mapping]] = ..., render: _Optional[_Union[Render, _Mapping]] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("world", "key", "with_state", "with_board")
    WORLD_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    WITH_STATE_FIELD_NUMBER: _ClassVar[int]
    WITH_BOARD_FIELD_NUMBER: _ClassVar[int]
    world: World
    key: str
    with_state: bool
    with_board: bool
    def __init__(self, world: _Optional[_Union[World, _Mapping]] = ..., key: _Optional[str] = ..., with_state: bool = ..., with_board: bool = ...) -> None: ...

class Reset(_message.Message):
    __slots__ = ("task", "seed")
    TASK_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    task: Task
    seed: int
    def __init__(self, task: _Optional[_Union[Task, _Mapping]] = ..., seed: _Optional[int] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("actions", "order")
    class ActionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Message
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Message, _Mapping]] = ...) -> None: ...
    ACTIONS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    actions: _containers.MessageMap[str, Message]
    order: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, actions: _Optional[_Mapping[str, Message]] = ..., order: _Optional[_Iterable[str]] = ...) -> None: ...

class Expert(_message.Message):
    __slots__ = ("agent", "messages")
    AGENT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    agent: str
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, agent: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class Fork(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: str
    def __init__(self, key: _Optional[str] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Render(_message.Message):
    __slots__ = ("agent",)
    AGENT_FIELD_NUMBER: _ClassVar[int]
    agent: str
    def __init__(self, agent: _Optional[str] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Reply(_message.Message):
    __slots__ = ("session", "seq", "result", "said", "opened", "closed", "failure", "board")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    SAID_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    BOARD_FIELD_NUMBER: _ClassVar[int]
    session: str
    seq: int
    result: StepResult
    said: Said
    opened: Opened
    closed: Closed
    failure: Failure
    board: Board
    def __init__(self, session: _Optional[str] = ..., seq: _Optional[int] = ..., result: _Optional[_Union[StepResult, _Mapping]] = ..., said: _Optional[_Union[Said, _Mapping]] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., closed: _Optional[_Union[Closed, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., board: _Optional[_Union[Board, _Mapping]] = ...) -> None: ...

class Board(_message.Message):
    __slots__ = ("text", "html")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    HTML_FIELD_NUMBER: _ClassVar[int]
    text: str
    html: bool
    def __init__(self, text: _Optional[str] = ..., html: bool = ...) -> None: ...

class Said(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session", "lease_seconds", "epoch")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    session: str
    lease_seconds: float
    epoch: str
    def __init__(self, session: _Optional[str] = ..., lease_seconds: _Optional[float] = ..., epoch: _Optional[str] = ...) -> None: ...

class Closed(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Failure(_message.Message):
    __slots__ = ("kind", "message", "retry_after")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Failure.Kind]
        WORLD: _ClassVar[Failure.Kind]
        LOST: _ClassVar[Failure.Kind]
        GAP: _ClassVar[Failure.Kind]
        BUSY: _ClassVar[Failure.Kind]
        BAD: _ClassVar[Failure.Kind]
        SLOW: _ClassVar[Failure.Kind]
        REWARD: _ClassVar[Failure.Kind]
    UNKNOWN: Failure.Kind
    WORLD: Failure.Kind
    LOST: Failure.Kind
    GAP: Failure.Kind
    BUSY: Failure.Kind
    BAD: Failure.Kind
    SLOW: Failure.Kind
    REWARD: Failure.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    kind: Failure.Kind
    message: str
    retry_after: float
    def __init__(self, kind: _Optional[_Union[Failure.Kind, str]] = ..., message: _Optional[str] = ..., retry_after: _Optional[float] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, sessions: _Optional[_Iterable[str]] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("lost", "epoch")
    LOST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    lost: _containers.RepeatedScalarFieldContainer[str]
    epoch: str
    def __init__(self, lost: _Optional[_Iterable[str]] = ..., epoch: _Optional[str] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PolicyName(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: str
    def __init__(self, policy: _Optional[str] = ...) -> None: ...

class PolicyInfo(_message.Message):
    __slots__ = ("name", "model", "max_context", "version", "fingerprint")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    name: str
    model: str
    max_context: int
    version: int
    fingerprint: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., model: _Optional[str] = ..., max_context: _Optional[int] = ..., version: _Optional[int] = ..., fingerprint: _Optional[_Iterable[float]] = ...) -> None: ...

class ListReply(_message.Message):
    __slots__ = ("policies", "epoch")
    POLICIES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    policies: _containers.RepeatedCompositeFieldContainer[PolicyInfo]
    epoch: str
    def __init__(self, policies: _Optional[_Iterable[_Union[PolicyInfo, _Mapping]]] = ..., epoch: _Optional[str] = ...) -> None: ...

class Files(_message.Message):
    __slots__ = ("files",)
    class FilesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bytes
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...
    FILES_FIELD_NUMBER: _ClassVar[int]
    files: _containers.ScalarMap[str, bytes]
    def __init__(self, files: _Optional[_Mapping[str, bytes]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "stop")
    MAX_NEW_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    stop: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, max_new_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., stop: _Optional[_Iterable[str]] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("token_ids", "sampling", "seed")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    seed: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., seed: _Optional[int] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("policy", "prompts")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    policy: str
    prompts: _containers.RepeatedCompositeFieldContainer[Prompt]
    def __init__(self, policy: _Optional[str] = ..., prompts: _Optional[_Iterable[_Union[Prompt, _Mapping]]] = ...) -> None: ...

class Completion(_message.Message):
    __slots__ = ("token_ids", "logprobs", "text", "finish_reason", "version")
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    logprobs: _containers.RepeatedScalarFieldContainer[float]
    text: str
    finish_reason: str
    version: int
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ..., logprobs: _Optional[_Iterable[float]] = ..., text: _Optional[str] = ..., finish_reason: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class GenerateReply(_message.Message):
    __slots__ = ("completions", "epoch")
    COMPLETIONS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    completions: _containers.RepeatedCompositeFieldContainer[Completion]
    epoch: str
    def __init__(self, completions: _Optional[_Iterable[_Union[Completion, _Mapping]]] = ..., epoch: _Optional[str] = ...) -> None: ...

class WeightsChunk(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: WeightsHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[WeightsHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class WeightsHeader(_message.Message):
    __slots__ = ("policy", "version", "num_bytes", "sha256")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    policy: str
    version: int
    num_bytes: int
    sha256: str
    def __init__(self, policy: _Optional[str] = ..., version: _Optional[int] = ..., num_bytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class WeightsReply(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...
