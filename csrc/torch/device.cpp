#include "torch/device.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <unistd.h>

#include <mutex>

#include "torch/compat.h"

namespace accel {

NativeDevice native_devices[kMaxDevices];
int native_count = 0;

namespace {

std::once_flag natives_built;
// The extension is loaded late, but these few bytes fit the loader's reserve for that, and reading them is one
// instruction.
__attribute__((tls_model("initial-exec"))) thread_local c10::DeviceIndex current = 0;

NativeDevice make_native(const DeviceEntry& entry) {
  TORCH_CHECK(entry.route == "native", "torch_accel: device table: expected route native, got ", entry.route);
  NativeDevice native;
  native.backend = entry.backend.c_str();
  native.dense = c10::parseDispatchKey(entry.key);
  const auto type = c10::dispatchKeyToDeviceType(native.dense);
  native.host = type == c10::DeviceType::CPU;
  native.device = native.host ? c10::Device(type) : c10::Device(type, static_cast<c10::DeviceIndex>(entry.index));
  const auto backend = c10::toBackendComponent(native.dense);
  native.sparse = c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Sparse, backend);
  native.sparse_csr = c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::SparseCsr, backend);
  native.quantized = c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::Quantized, backend);
  native.nested = c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::NestedTensor, backend);
  return native;
}

void release_native(Cell& cell) {
  if (void* spare = cell.spare.load(std::memory_order_acquire)) {
    c10::raw::intrusive_ptr::decref(static_cast<c10::TensorImpl*>(spare));
  }
  c10::raw::intrusive_ptr::decref(native_impl(cell));
}

c10::DataPtr make_data_ptr(Cell* cell, c10::DeviceIndex index) {
  return {native_impl(*cell)->_mutable_data_ptr_no_checks().get(), cell, &Cell::destroy, c10::Device(kAccel, index)};
}

c10::DataPtr cell_data_ptr(c10::Storage native, c10::DeviceIndex index) {
  const size_t bytes = native.nbytes();
  return make_data_ptr(new Cell(index, bytes, native.unsafeReleaseStorageImpl(), &release_native), index);
}

c10::Storage empty_native(const NativeDevice& native, size_t bytes) {
  auto* allocator = native_allocator(native);
  if (native.host) {
    return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                                 c10::SymInt(static_cast<int64_t>(bytes)), allocator->allocate(bytes),
                                                 allocator, /*resizable=*/true);
  }
  const auto* guard = c10::impl::getDeviceGuardImpl(native.device.type());
  const auto before = guard->exchangeDevice(native.device);
  auto data = allocator->allocate(bytes);
  guard->uncheckedSetDevice(before);
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                               c10::SymInt(static_cast<int64_t>(bytes)), std::move(data), allocator,
                                               /*resizable=*/true);
}

// Statistics come from the cells where the native device has none of its own (the CPU).
class AccelAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    ensure_ready();
    const auto index = current_device();
    return cell_data_ptr(empty_native(native_device(index), bytes), index);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* dest, const void* src, std::size_t count) const override {
    native_allocator(native_device(current_device()))->copy_data(dest, src, count);
  }

  bool initialized() override { return DeviceTable::ready(); }
  void emptyCache(c10::MempoolId_t pool) override {
    for (c10::DeviceIndex i = 0; i < device_count(); ++i) {
      if (auto* native = stats_of(i)) native->emptyCache(pool);
    }
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    const auto& native = native_device(stream.device_index());
    if (native.host) return;
    const auto* cell = data.get_deleter() == &Cell::destroy ? static_cast<const Cell*>(data.get_context()) : nullptr;
    c10::getDeviceAllocator(native.device.type())
        ->recordStream(cell ? native_impl(*cell)->_mutable_data_ptr_no_checks() : data,
                       c10::Stream(c10::Stream::UNSAFE, native.device, stream.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    if (auto* native = stats_of(index)) return native->getDeviceStats(native_device(index).device.index());
    const MemoryStats& stats = memory_stats(index);
    c10::CachingDeviceAllocator::DeviceStats out;
    const auto fill = [](const MemoryStats::Series& from, c10::CachingAllocator::StatArray& to) {
      auto& all = to[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
      all.current = from.current;
      all.peak = from.peak;
      all.allocated = from.allocated();
      all.freed = from.freed();
    };
    // Nothing is cached: what is allocated is what is reserved.
    for (auto* bytes : {&out.allocated_bytes, &out.reserved_bytes, &out.active_bytes, &out.requested_bytes}) {
      fill(stats.bytes, *bytes);
    }
    for (auto* count : {&out.allocation, &out.segment, &out.active}) fill(stats.count, *count);
    out.num_device_alloc = stats.count.allocated();
    out.num_device_free = stats.count.freed();
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    if (auto* native = stats_of(index)) return native->resetAccumulatedStats(native_device(index).device.index());
    memory_stats(index).bytes.reset_accumulated();
    memory_stats(index).count.reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    if (auto* native = stats_of(index)) return native->resetPeakStats(native_device(index).device.index());
    memory_stats(index).bytes.reset_peak();
    memory_stats(index).count.reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override;

 private:
  static c10::DeviceAllocator* stats_of(c10::DeviceIndex index) {
    const auto& native = native_device(index);
    return native.host ? nullptr : c10::getDeviceAllocator(native.device.type());
  }
};

std::pair<size_t, size_t> AccelAllocator::getMemoryInfo(c10::DeviceIndex index) {
  if (auto* native = stats_of(index)) return native->getMemoryInfo(native_device(index).device.index());
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return {page * static_cast<size_t>(sysconf(_SC_AVPHYS_PAGES)), page * static_cast<size_t>(sysconf(_SC_PHYS_PAGES))};
}

AccelAllocator allocator;
REGISTER_ALLOCATOR(c10::DeviceType::PrivateUse1, &allocator);

}  // namespace

void fail_index(c10::DeviceIndex index) {
  TORCH_CHECK_INDEX(false, "torch_accel: device: expected an index below ", native_count,
                    ", got accel:", static_cast<int>(index));
}

void first_use() {
  auto& table = DeviceTable::instance();
  const auto& entries = table.entries();
  std::call_once(natives_built, [&] {
    for (size_t i = 0; i < entries.size(); ++i) native_devices[i] = make_native(entries[i]);
    native_count = static_cast<int>(entries.size());
  });
  table.initialize();
}

c10::DeviceIndex device_count() noexcept {
  try {
    return static_cast<c10::DeviceIndex>(DeviceTable::instance().entries().size());
  } catch (...) {
    return 0;
  }
}

c10::DeviceIndex current_device() { return current; }

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  const auto before = current;
  if (index < 0) return before;
  const auto& native = native_device(index);
  if (!native.host) c10::impl::getDeviceGuardImpl(native.device.type())->setDevice(native.device);
  current = index;
  return before;
}

c10::DeviceAllocator* device_allocator() { return &allocator; }

c10::Allocator* native_allocator(const NativeDevice& native) { return c10::GetAllocator(native.device.type()); }

c10::Storage wrap_storage(c10::Storage native, c10::DeviceIndex index) {
  const auto bytes = static_cast<int64_t>(native.nbytes());
  const bool resizable = native.resizable();
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(bytes),
                                               cell_data_ptr(std::move(native), index), &allocator, resizable);
}

c10::Storage native_storage(const c10::Storage& storage) {
  auto* impl = storage.unsafeGetStorageImpl();
  auto& data = impl->_mutable_data_ptr_no_checks();
  if (const Cell* cell = cell_of(storage); C10_LIKELY(cell != nullptr)) {
    return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(native_impl(*cell));
  }
  ensure_ready();
  const auto index = data.device().has_index() ? data.device().index() : current_device();
  const auto& native = native_device(index);
  if (data.get() == nullptr) {
    // Built without memory (meta-like construction, a moved-from storage): give it a cell that can grow.
    impl->set_data_ptr_noswap(cell_data_ptr(empty_native(native, impl->nbytes()), index));
    return native_storage(storage);
  }
  // Somebody else's memory: its owner moves into the native storage of a cell of its own, so that from now on all views
  // of it share one native storage. It is not ours, so it does not count, and it cannot grow.
  static std::mutex adopting;
  std::lock_guard<std::mutex> guard(adopting);
  if (cell_of(storage) == nullptr) {
    void* address = data.get();
    const auto deleter = data.get_deleter();
    c10::DataPtr theirs(address, data.release_context(), deleter, native.device);
    c10::Storage owner = c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), c10::SymInt(static_cast<int64_t>(impl->nbytes())), std::move(theirs),
        /*allocator=*/nullptr, /*resizable=*/false);
    auto* cell = new Cell(index, 0, owner.unsafeReleaseStorageImpl(), &release_native);
    impl->set_data_ptr_noswap(make_data_ptr(cell, index));
  }
  return native_storage(storage);
}

void sync_storage(const c10::Storage& storage) {
  auto* impl = storage.unsafeGetStorageImpl();
  auto& data = impl->_mutable_data_ptr_no_checks();
  Cell* cell = cell_of(storage);
  if (cell == nullptr) return;
  auto* native = native_impl(*cell);
  const size_t bytes = native->nbytes();
  if (bytes != impl->nbytes()) {
    cell->rebind(bytes);
    impl->set_nbytes(bytes);
  }
  if (native->_mutable_data_ptr_no_checks().get() != data.get()) {
    const auto index = data.device().index();
    data.release_context();
    impl->set_data_ptr_noswap(make_data_ptr(cell, index));
  }
}

void resize_storage(const c10::Storage& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(), "Trying to resize storage that is not resizable");
  c10::Storage old = native_storage(storage);
  const auto index = storage.device().index();
  const auto& native = native_device(index);
  c10::Storage fresh = empty_native(native, bytes);
  if (const auto kept = static_cast<int64_t>(std::min<size_t>(bytes, old.nbytes())); kept > 0) {
    const auto view = [&](const c10::Storage& of) {
      auto options = at::TensorOptions().dtype(at::kByte).device(native.device);
      return at::from_blob(of.mutable_data(), {kept}, options);
    };
    view(fresh).copy_(view(old));
  }
  auto* impl = storage.unsafeGetStorageImpl();
  if (Cell* cell = cell_of(storage)) {
    // Keep the native StorageImpl: kernels may hold it.
    native_impl(*cell)->set_data_ptr_noswap(std::move(fresh.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks()));
    native_impl(*cell)->set_nbytes(bytes);
    sync_storage(storage);
  } else {
    impl->set_data_ptr_noswap(cell_data_ptr(std::move(fresh), index));
    impl->set_nbytes(bytes);
  }
}

}  // namespace accel
