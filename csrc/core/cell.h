// Cell: what the data pointer of every accel storage owns.
//
// Invariants
//   * A Cell belongs to exactly one accel StorageImpl: it is the context of that storage's DataPtr and dies with it.
//   * `owner` keeps the memory alive; `bytes` is what the device's memory statistics count for it, from make() to
//     destroy(), and only rebind() may change either.
//   * State says who answers for the value. Only `native` exists on the native route (the owner is another device's
//     storage); the graph route adds device buffers and values that are still on a tape.
// Who may call: csrc/torch/device.cpp only, which maps between storages and cells.
#pragma once

#include <cstddef>
#include <cstdint>

namespace accel {

struct Cell {
  enum class State : uint8_t { native };

  State state;
  int8_t device;          // index in the device table
  size_t bytes;           // counted in the statistics of `device`
  void* owner;            // an owned reference, given up through `release`
  void (*release)(void*);

  static Cell* make(int device, size_t bytes, void* owner, void (*release)(void*));
  // The memory behind the owner was replaced (a resize): count the new size.
  void rebind(size_t new_bytes);
  // Deleter of the DataPtr.
  static void destroy(void* cell);
};

}  // namespace accel
