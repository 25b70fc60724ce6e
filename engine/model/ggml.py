"""Block sizes of ggml's tensor types, and the names of file types."""

from dataclasses import dataclass

from engine.errors import ModelFileError


@dataclass(frozen=True, slots=True)
class GgmlType:
    """A tensor type: `block_size` elements in `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int

    @property
    def bits(self) -> float:
        """Bits of one element, with its share of the scales."""
        return 8 * self.block_bytes / self.block_size

    def row_bytes(self, n_elements: int) -> int:
        return n_elements // self.block_size * self.block_bytes


GGML_TYPES: dict[int, GgmlType] = {
    number: GgmlType(*row)
    for number, row in {
        0: ("f32", 1, 4), 1: ("f16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20),
        6: ("q5_0", 32, 22), 7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 9: ("q8_1", 32, 36),
        10: ("q2_K", 256, 84), 11: ("q3_K", 256, 110), 12: ("q4_K", 256, 144),
        13: ("q5_K", 256, 176), 14: ("q6_K", 256, 210), 15: ("q8_K", 256, 292),
        16: ("iq2_xxs", 256, 66), 17: ("iq2_xs", 256, 74), 18: ("iq3_xxs", 256, 98),
        19: ("iq1_s", 256, 50), 20: ("iq4_nl", 32, 18), 21: ("iq3_s", 256, 110),
        22: ("iq2_s", 256, 82), 23: ("iq4_xs", 256, 136), 24: ("i8", 1, 1), 25: ("i16", 1, 2),
        26: ("i32", 1, 4), 27: ("i64", 1, 8), 28: ("f64", 1, 8), 29: ("iq1_m", 256, 56),
        30: ("bf16", 1, 2), 34: ("tq1_0", 256, 54), 35: ("tq2_0", 256, 66), 39: ("mxfp4", 32, 17),
        40: ("nvfp4", 64, 36), 41: ("q1_0", 128, 18), 42: ("q2_0", 64, 18),
    }.items()
}  # fmt: skip
"""By ggml id; sizes of ggml at llama.cpp 0c1e57098, which a test compares with the library's."""

TYPE_NUMBERS: dict[str, int] = {each.name: number for number, each in GGML_TYPES.items()}
TYPES_BY_NAME: dict[str, GgmlType] = {each.name: each for each in GGML_TYPES.values()}

REMOVED_TYPES = (4, 5, 31, 32, 33, 36, 37, 38)  # types that llama.cpp once had (ggml.h)

FILE_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0",
    38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0", 41: "Q2_0",
}  # fmt: skip
"""Names of `general.file_type` (llama.h, `enum llama_ftype`)."""
FILE_TYPE_IDS: dict[str, int] = {name: number for number, name in FILE_TYPES.items()}


def ggml_type(number: int, tensor: str, offset: int) -> GgmlType:
    """A type by its ggml id; raises `ModelFileError` for an id whose size is not known."""
    if number in GGML_TYPES:
        return GGML_TYPES[number]
    problem = (
        "which llama.cpp no longer reads: download the model in another quantisation"
        if number in REMOVED_TYPES
        else "which is unknown: the file is newer than kvchat, or damaged"
    )
    raise ModelFileError(f"tensor {tensor!r} has the type {number} at byte {offset}, {problem}")
