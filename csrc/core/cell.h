// Cell: what the data pointer of every accel storage owns.
//
// Invariants
//   * A Cell belongs to exactly one accel StorageImpl: it is the context of that storage's DataPtr and dies with it.
//   * `owner` keeps the memory alive; `bytes` is what the device's memory statistics count for it, from make() to
//     destroy(), and only rebind() may change either.
//   * State says who answers for the value. Only `native` exists on the native route (the owner is another device's
//     storage); the graph route adds device buffers and values that are still on a tape.
//   * `spare` is a translation of the cell's tensor left over from the last call, for the next one to reuse, or null.
//   Who
//     takes it (exchange with null) owns it until it is put back.
// Who may call: csrc/torch/device.cpp, which maps between storages and cells; csrc/torch/call.cpp for `spare`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/memory_stats.h"

namespace accel {

struct Cell {
  enum class State : uint8_t { native };

  State state;
  int8_t device;  // index in the device table
  size_t bytes;   // counted in the statistics of `device`
  void* owner;
  void (*release)(Cell&);  // gives up owner and spare
  std::atomic<void*> spare{nullptr};

  Cell(int device, size_t bytes, void* owner, void (*release)(Cell&))
      : state(State::native), device(static_cast<int8_t>(device)), bytes(bytes), owner(owner), release(release) {
    memory_stats(device).add(bytes);
  }
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;
  ~Cell() {
    memory_stats(device).remove(bytes);
    release(*this);
  }

  // The memory behind the owner was replaced (a resize): count the new size.
  void rebind(size_t new_bytes) {
    memory_stats(device).add(new_bytes);
    memory_stats(device).remove(bytes);
    bytes = new_bytes;
  }
  // Deleter of the DataPtr.
  static void destroy(void* cell) { delete static_cast<Cell*>(cell); }
};

}  // namespace accel
