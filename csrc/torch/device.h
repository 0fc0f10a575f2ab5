// Devices and storages: how an accel device and an accel storage relate to the native ones behind them.
//
// Invariants
//   * A storage on accel has a DataPtr whose context is a Cell (core/cell.h). One that somebody else built (DLPack,
//   from_blob)
//     shows a bare pointer into native memory until native_storage() first meets it and gives it a cell.
//   * A native cell owns one native StorageImpl; the accel storage shows the same pointer and the same number of bytes.
//     Whoever may have resized the native one calls sync_storage() before the accel storage is looked at again.
//   * No torch type of another backend's headers is used: native devices are reached through c10's device-generic
//     interfaces, so the same code serves CPU and CUDA and needs no CUDA toolkit.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Device.h>
#include <c10/core/DispatchKey.h>
#include <c10/core/Storage.h>

#include "core/cell.h"
#include "core/device_table.h"

namespace accel {

inline constexpr c10::DeviceType kAccel = c10::DeviceType::PrivateUse1;

// The native route of one accel device.
struct NativeDevice {
  c10::Device device{c10::DeviceType::CPU};  // native device, with index where the device type has them
  c10::DispatchKey dense, sparse, sparse_csr, quantized, nested;
  bool host = false;  // runs on the CPU: memory is host memory, streams and events are ours
  const char* backend = "";
};

// The devices of the table, filled at first use.
extern NativeDevice native_devices[kMaxDevices];
extern int native_count;

// First use, fork check: one relaxed load when all is well.
void first_use();
inline void ensure_ready() {
  if (C10_UNLIKELY(!DeviceTable::ready())) first_use();
}

// Throws RuntimeError in a forked child or when no backend is usable, and IndexError for an index out of range.
[[noreturn]] void fail_index(c10::DeviceIndex index);
inline const NativeDevice& native_device(c10::DeviceIndex index) {
  ensure_ready();
  if (C10_UNLIKELY(index < 0 || index >= native_count)) fail_index(index);
  return native_devices[index];
}
// The same for a device that a tensor lives on, after ensure_ready(): no check.
inline const NativeDevice& native_device_of(const at::Tensor& tensor) {
  return native_devices[tensor.unsafeGetTensorImpl()->device().index()];
}

// 0 when the table cannot be resolved; never throws, never initialises.
c10::DeviceIndex device_count() noexcept;
c10::DeviceIndex current_device();
// Returns the previous one. A negative index changes nothing.
c10::DeviceIndex exchange_device(c10::DeviceIndex index);
inline c10::Device with_index(c10::Device device) {
  return device.has_index() ? device : c10::Device(kAccel, current_device());
}

c10::DeviceAllocator* device_allocator();
c10::Allocator* native_allocator(const NativeDevice& native);

// The cell of a storage, null for a storage that somebody else built.
inline Cell* cell_of(const c10::Storage& storage) {
  const auto& data = storage.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return data.get_deleter() == &Cell::destroy ? static_cast<Cell*>(data.get_context()) : nullptr;
}
inline c10::StorageImpl* native_impl(const Cell& cell) { return static_cast<c10::StorageImpl*>(cell.owner); }

// A new accel storage that owns `native`.
c10::Storage wrap_storage(c10::Storage native, c10::DeviceIndex index);
// The native storage behind an accel storage.
c10::Storage native_storage(const c10::Storage& storage);
// Shows a changed native pointer or size in the accel storage.
void sync_storage(const c10::Storage& storage);
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace accel
