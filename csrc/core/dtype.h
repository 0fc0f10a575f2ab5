// The one table of element types.
//
// Invariants
//   * A Dtype is the number that torch gives the same type (c10::ScalarType; part of torch's file formats, so it does
//     not move): mapping from and to torch is the identity. Types that no compiler takes have no entry.
//   * `pjrt` is the number of PJRT_Buffer_Type; pjrt_backend.cpp checks it against the header.
//   * `bytes` is the size of one element in host memory, where a 4-bit integer takes a whole byte. Its low half counts;
//   what
//     comes from a device has an undefined upper half.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace accel {

enum class Dtype : int8_t {
  u8 = 0,
  s8 = 1,
  s16 = 2,
  s32 = 3,
  s64 = 4,
  f16 = 5,
  f32 = 6,
  f64 = 7,
  c64 = 9,
  c128 = 10,
  pred = 11,
  bf16 = 15,
  f8e5m2 = 23,
  f8e4m3fn = 24,
  f8e5m2fnuz = 25,
  f8e4m3fnuz = 26,
  u16 = 27,
  u32 = 28,
  u64 = 29,
  u4 = 33,
  s4 = 40,
  f8e8m0fnu = 44,
};

struct DtypeInfo {
  Dtype id;
  const char* name;       // torch's
  const char* stablehlo;  // the element type in StableHLO text
  int pjrt;
  int bytes;
};

inline constexpr DtypeInfo dtypes[] = {
    {Dtype::u8, "uint8", "ui8", 6, 1},
    {Dtype::s8, "int8", "i8", 2, 1},
    {Dtype::s16, "int16", "i16", 3, 2},
    {Dtype::s32, "int32", "i32", 4, 4},
    {Dtype::s64, "int64", "i64", 5, 8},
    {Dtype::f16, "float16", "f16", 10, 2},
    {Dtype::f32, "float32", "f32", 11, 4},
    {Dtype::f64, "float64", "f64", 12, 8},
    {Dtype::c64, "complex64", "complex<f32>", 14, 8},
    {Dtype::c128, "complex128", "complex<f64>", 15, 16},
    {Dtype::pred, "bool", "i1", 1, 1},
    {Dtype::bf16, "bfloat16", "bf16", 13, 2},
    {Dtype::f8e5m2, "float8_e5m2", "f8E5M2", 16, 1},
    {Dtype::f8e4m3fn, "float8_e4m3fn", "f8E4M3FN", 17, 1},
    {Dtype::f8e5m2fnuz, "float8_e5m2fnuz", "f8E5M2FNUZ", 19, 1},
    {Dtype::f8e4m3fnuz, "float8_e4m3fnuz", "f8E4M3FNUZ", 20, 1},
    {Dtype::u16, "uint16", "ui16", 7, 2},
    {Dtype::u32, "uint32", "ui32", 8, 4},
    {Dtype::u64, "uint64", "ui64", 9, 8},
    {Dtype::u4, "uint4", "ui4", 22, 1},
    {Dtype::s4, "int4", "i4", 21, 1},
    {Dtype::f8e8m0fnu, "float8_e8m0fnu", "f8E8M0FNU", 28, 1},
};

// The entry, or null for a type that has none.
constexpr const DtypeInfo* find_dtype(Dtype id) {
  for (const DtypeInfo& info : dtypes)
    if (info.id == id) return &info;
  return nullptr;
}
constexpr const DtypeInfo* find_dtype(std::string_view name) {
  for (const DtypeInfo& info : dtypes)
    if (name == info.name) return &info;
  return nullptr;
}
constexpr const DtypeInfo* find_dtype_of_pjrt(int pjrt) {
  for (const DtypeInfo& info : dtypes)
    if (info.pjrt == pjrt) return &info;
  return nullptr;
}

}  // namespace accel
