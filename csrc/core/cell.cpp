#include "core/cell.h"

#include "core/memory_stats.h"

namespace accel {

Cell* Cell::make(int device, size_t bytes, void* owner, void (*release)(void*)) {
  memory_stats(device).add(bytes);
  return new Cell{State::native, static_cast<int8_t>(device), bytes, owner, release};
}

void Cell::rebind(size_t new_bytes) {
  memory_stats(device).add(new_bytes);
  memory_stats(device).remove(bytes);
  bytes = new_bytes;
}

void Cell::destroy(void* cell) {
  auto* self = static_cast<Cell*>(cell);
  memory_stats(self->device).remove(self->bytes);
  self->release(self->owner);
  delete self;
}

}  // namespace accel
