"""What one evaluation may take."""

from dataclasses import dataclass

from demur_proto.checks import check_integer, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationLimits:
    """The most that one evaluation may take. What it exceeds ends it, and the round gets cover.

    Raises:
        ParameterError: a field is outside its range.
    """

    memory_mib: int = 256  #: beyond what the evaluator has itself; 64 to 2^20
    processor_s: int = 30  #: seconds of processor time, all threads together; 1 to 2^20
    wall_s: float = 60.0  #: seconds; > 0. The slot ends it earlier, at four fifths

    def __post_init__(self) -> None:
        check_integer("evaluation_memory_mib", self.memory_mib, 64, 1 << 20)
        check_integer("evaluation_processor_s", self.processor_s, 1, 1 << 20)
        check_positive("evaluation_wall_s", self.wall_s)

    @property
    def memory_bytes(self) -> int:
        """The same memory in bytes."""
        return self.memory_mib << 20
