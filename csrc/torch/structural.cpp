// Structural operators: they make, view or rebind storage and compute nothing. Torch's own implementations for plain
// strided tensors serve most of them; registering those unboxed keeps views as cheap as on the CPU.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include "torch/device.h"

namespace accel {
namespace {

using at::IntArrayRef;
using at::Tensor;
constexpr c10::DispatchKeySet kDense(c10::DispatchKey::PrivateUse1);

void check_factory(const char* op, std::optional<c10::Layout> layout, std::optional<bool> pin_memory) {
  TORCH_CHECK(layout.value_or(c10::kStrided) == c10::kStrided, "torch_accel: ", op,
              ": expected layout torch.strided, got ", *layout);
  TORCH_CHECK(!pin_memory.value_or(false), "torch_accel: ", op,
              ": expected pin_memory=False, got True: only dense CPU tensors can be pinned");
}

Tensor filled_if_deterministic(Tensor tensor) {
  const auto& context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())) {
    at::native::fill_empty_deterministic_(tensor);
  }
  return tensor;
}

Tensor empty(IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<c10::Layout> layout,
             std::optional<c10::Device> device, std::optional<bool> pin_memory,
             std::optional<c10::MemoryFormat> format) {
  check_factory("aten::empty", layout, pin_memory);
  const c10::DeviceGuard guard(with_index(device.value_or(c10::Device(kAccel))));
  return filled_if_deterministic(
      at::detail::empty_generic(size, device_allocator(), kDense, c10::dtype_or_default(dtype), format));
}

Tensor empty_strided(IntArrayRef size, IntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                     std::optional<bool> pin_memory) {
  check_factory("aten::empty_strided", layout, pin_memory);
  const c10::DeviceGuard guard(with_index(device.value_or(c10::Device(kAccel))));
  return filled_if_deterministic(
      at::detail::empty_strided_generic(size, stride, device_allocator(), kDense, c10::dtype_or_default(dtype)));
}

// Torch's own would grow the storage through the CPU's allocator and memcpy.
const Tensor& resize_(const Tensor& self, IntArrayRef size, std::optional<c10::MemoryFormat> format) {
  const size_t before = self.storage().nbytes();
  auto* impl = self.unsafeGetTensorImpl();
  at::native::resize_impl_cpu_(impl, size, std::nullopt, /*resize_storage=*/false);
  const size_t needed =
      at::detail::computeStorageNbytesContiguous(size, self.itemsize(), static_cast<size_t>(self.storage_offset()));
  if (self.numel() > 0 && needed > before) resize_storage(self.storage(), needed);
  if (format) {
    TORCH_CHECK(*format != c10::MemoryFormat::Preserve, "Unsupported memory format", *format);
    impl->empty_tensor_restride(*format);
  }
  const auto& context = at::globalContext();
  if (C10_UNLIKELY(context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory())) {
    at::native::fill_resize_deterministic_(self, static_cast<int64_t>(before));
  }
  return self;
}

void check_same_device(const char* op, const Tensor& self, c10::Device source) {
  TORCH_CHECK(self.device() == source, "torch_accel: ", op, ": expected a source on ", self.device(), ", got one on ",
              source, " (a tensor cannot take over storage of another device)");
}

Tensor& set_storage_offset_(Tensor& self, c10::Storage source, int64_t offset, IntArrayRef size, IntArrayRef stride) {
  check_same_device("aten::set_", self, source.device());
  at::native::checkSetStorage(self, source, offset, size, stride);
  self.unsafeGetTensorImpl()->set_storage_offset(offset);
  at::native::resize_impl_cpu_(self.unsafeGetTensorImpl(), size,
                               stride.data() ? std::make_optional(stride) : std::nullopt,
                               /*resize_storage=*/false);
  const size_t needed =
      at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(), static_cast<size_t>(offset));
  if (self.numel() > 0 && needed > self.storage().nbytes()) {
    TORCH_CHECK(self.storage().resizable(), "torch_accel: aten::set_: expected a storage of at least ", needed,
                " bytes, got one of ", self.storage().nbytes(), " that is not resizable");
    resize_storage(self.storage(), needed);
  }
  return self;
}

Tensor& set_storage_(Tensor& self, c10::Storage source) {
  const auto elements = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage_offset_(self, std::move(source), 0, elements, {});
}

Tensor& set_tensor_(Tensor& self, const Tensor& source) {
  check_same_device("aten::set_", self, source.device());
  return self.is_same(source)
             ? self
             : set_storage_offset_(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

Tensor& set_nothing_(Tensor& self) {
  const auto fresh = at::detail::empty_generic({0}, device_allocator(), kDense, self.scalar_type(), std::nullopt);
  return set_storage_offset_(self, fresh.storage(), 0, {0}, {});
}

Tensor copy_from(const Tensor& self, const Tensor& destination, bool non_blocking) {
  return destination.copy_(self, non_blocking);
}

Tensor copy_from_and_resize(const Tensor& self, const Tensor& destination) {
  destination.resize_(self.sizes());
  return destination.copy_(self);
}

// The memory is shared between two owners either way; copy-on-write would have to live in the native storage.
Tensor lazy_clone(const Tensor& self) { return self.clone(); }

void record_stream(Tensor& self, c10::Stream stream) {
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

// What `parameter.data = other` and Module.to ask before they let a tensor take over another's insides. Torch's own
// answer knows a list of device types; any two plain tensors fit, wherever they live.
bool has_compatible_shallow_copy_type(const Tensor& self, const Tensor& from) {
  const auto kind = [](const Tensor& tensor) {
    const auto keys = tensor.key_set();
    return std::tuple(tensor.layout(), keys.has(c10::DispatchKey::Quantized), keys.has(c10::DispatchKey::NestedTensor),
                      tensor.unsafeGetTensorImpl()->has_storage());
  };
  return kind(self) == kind(from);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("view", at::native::view);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  m.impl("resize_", resize_);
  m.impl("set_", set_nothing_);
  m.impl("set_.source_Storage", set_storage_);
  m.impl("set_.source_Storage_storage_offset", set_storage_offset_);
  m.impl("set_.source_Tensor", set_tensor_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_lazy_clone", lazy_clone);
  m.impl("record_stream", record_stream);
}

TORCH_LIBRARY_IMPL(aten, QuantizedPrivateUse1, m) {
  m.impl("set_.source_Storage", set_storage_);
  m.impl("set_.source_Storage_storage_offset", set_storage_offset_);
  m.impl("set_.source_Tensor", set_tensor_);
}

}  // namespace
}  // namespace accel
