#include "torch/call.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/List.h>
#include <ATen/quantized/QTensorImpl.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "core/counters.h"
#include "torch/generator.h"

namespace accel {
namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;
using c10::IValue;
using Kind = ArgSlot::Kind;

DispatchKey key_of(const NativeDevice& native, DispatchKey functionality) {
  switch (functionality) {
    case DispatchKey::Sparse:
      return native.sparse;
    case DispatchKey::SparseCsr:
      return native.sparse_csr;
    case DispatchKey::Quantized:
      return native.quantized;
    case DispatchKey::NestedTensor:
      return native.nested;
    default:
      return native.dense;
  }
}

const DispatchKeySet kMathBits({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor});
const DispatchKeySet kZeroTensor(DispatchKey::ZeroTensor);

// Tensors with a storage that are more than their strides.
const DispatchKeySet kSpecial({DispatchKey::Quantized, DispatchKey::NestedTensor});

bool is_nested(const at::Tensor& tensor) { return tensor.key_set().has(DispatchKey::NestedTensor); }

// Kernels below autograd may ask whether a gradient is wanted.
void copy_requires_grad(const c10::TensorImpl& from, c10::TensorImpl& to) {
  if (C10_LIKELY(!from.requires_grad())) return;
  auto meta = c10::impl::GetAutogradMetaFactory()->make();
  meta->set_requires_grad(true, &to);
  to.set_autograd_meta(std::move(meta));
}

// Metadata that a strided alias takes over; `impl` has the storage already.
void copy_metadata(const c10::TensorImpl& from, c10::TensorImpl& to) {
  to.set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  const auto keys = from.key_set();
  if (C10_UNLIKELY(keys.has_any(kMathBits))) {
    to._set_conj(keys.has(DispatchKey::Conjugate));
    to._set_neg(keys.has(DispatchKey::Negative));
  }
  if (C10_UNLIKELY(from.is_wrapped_number())) to.set_wrapped_number(true);
  to.set_allow_tensor_metadata_change(from.allow_tensor_metadata_change());
}

// The tensors of sizes, strides and offsets are host data on every device.
at::Tensor make_nested(DispatchKey key, const at::Tensor& like, c10::Storage storage) {
  const auto& from = static_cast<const at::native::NestedTensorImpl&>(*like.unsafeGetTensorImpl());
  return at::detail::make_tensor<at::native::NestedTensorImpl>(std::move(storage), DispatchKeySet(key), like.dtype(),
                                                               from.get_nested_sizes(), from.get_nested_strides(),
                                                               from.get_storage_offsets());
}

// What an alias shows beyond its storage is what its original shows.
bool same_metadata(const c10::TensorImpl& a, const c10::TensorImpl& b) {
  const auto marked = a.key_set() | b.key_set();
  return a.dtype() == b.dtype() && a.storage_offset() == b.storage_offset() && a.sizes() == b.sizes() &&
         a.strides() == b.strides() && !marked.has_any(kMathBits) && !a.is_wrapped_number() &&
         a.requires_grad() == b.requires_grad() && a.allow_tensor_metadata_change() == b.allow_tensor_metadata_change();
}

at::Tensor dense_alias(const at::Tensor& tensor, c10::Storage storage, const NativeDevice& native) {
  auto& from = *tensor.unsafeGetTensorImpl();
  if (C10_UNLIKELY(is_nested(tensor))) return make_nested(native.nested, tensor, std::move(storage));
  c10::intrusive_ptr<c10::TensorImpl> impl;
  if (C10_UNLIKELY(from.key_set().has(DispatchKey::Quantized))) {
    impl = c10::make_intrusive<at::QTensorImpl>(std::move(storage), DispatchKeySet(native.quantized), tensor.dtype(),
                                                static_cast<at::QTensorImpl&>(from).quantizer());
  } else {
    // ImplType::VIEW: no autograd keys and no version counter are wanted.
    const auto keys = DispatchKeySet(native.dense) | (from.key_set() & kZeroTensor);
    impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(storage), keys, tensor.dtype());
  }
  copy_metadata(from, *impl);
  copy_requires_grad(from, *impl);
  return at::Tensor(std::move(impl));
}

at::SparseTensorImpl& coo(const at::Tensor& tensor) {
  return static_cast<at::SparseTensorImpl&>(*tensor.unsafeGetTensorImpl());
}
at::SparseCsrTensorImpl& compressed(const at::Tensor& tensor) {
  return static_cast<at::SparseCsrTensorImpl&>(*tensor.unsafeGetTensorImpl());
}

at::Tensor make_coo(DispatchKey key, const at::Tensor& like, const at::Tensor& indices, const at::Tensor& values) {
  c10::OptionalDeviceGuard guard(values.device());
  auto out = at::detail::make_tensor<at::SparseTensorImpl>(DispatchKeySet(key), like.dtype());
  coo(out).raw_resize_(coo(like).sparse_dim(), coo(like).dense_dim(), like.sizes());
  coo(out).set_indices_and_values_unsafe(indices, values);
  coo(out).set_coalesced(coo(like).coalesced());
  return out;
}

at::Tensor make_compressed(DispatchKey key, const at::Tensor& like, const at::Tensor& outer, const at::Tensor& inner,
                           const at::Tensor& values) {
  auto out = at::detail::make_tensor<at::SparseCsrTensorImpl>(DispatchKeySet(key), values.device(), like.layout(),
                                                              like.dtype());
  compressed(out).set_member_tensors(outer, inner, values, like.sizes());
  return out;
}

bool is_coo(const at::Tensor& tensor) { return tensor.layout() == c10::kSparse; }
bool is_compressed(const at::Tensor& tensor) { return tensor.key_set().has(DispatchKey::SparseCsr); }

void count_copy(const torch::jit::Stack& stack, const OpEntry& entry) {
  c10::SmallVector<const at::Tensor*, 2> tensors;
  std::optional<c10::Device> asked;
  const size_t base = stack.size() - entry.arguments;
  for (const auto& slot : entry.slots) {
    const IValue& value = stack[base + slot.index];
    if (value.isTensor()) tensors.push_back(&value.toTensor());
    if (value.isDevice()) asked = value.toDevice();
  }
  const auto count = [](c10::Device source, c10::Device destination, size_t bytes) {
    auto& counters = Counters::instance();
    if (source == destination) return;
    if (source.type() != kAccel) {
      counters.host_to_device.add(bytes);
    } else if (destination.type() != kAccel) {
      counters.device_to_host.add(bytes);
    } else {
      counters.device_to_device.add(bytes);
    }
  };
  if (tensors.size() == 1 && asked) {
    count(tensors[0]->device(), *asked, tensors[0]->nbytes());
  } else if (tensors.size() == 2) {
    const bool from_first = entry.name.starts_with("aten::_copy_from");
    const auto& from = *tensors[from_first ? 0 : 1];
    const auto& to = *tensors[from_first ? 1 : 0];
    count(from.device(), to.device(), to.numel() * from.itemsize());
  }
}

}  // namespace

Call::Call(const c10::OperatorHandle& op, const OpEntry& entry, torch::jit::Stack& stack)
    : op_(op), entry_(entry), stack_(&stack) {
  // The first accel tensor decides, then an accel device argument, then the current device.
  const size_t base = stack.size() - entry.arguments;
  for (const auto& slot : entry.slots) {
    if (locate(stack[base + slot.index])) break;
  }
  if (C10_UNLIKELY(entry.device_slot >= 0) && stack[base + entry.device_slot].isDevice()) {
    const auto asked = stack[base + entry.device_slot].toDevice();
    adopts_ = asked.type() == kAccel;
    adopts_device_ = adopts_;
    if (adopts_) {
      target_device_ = with_index(asked).index();
      target_ = &native_device(target_device_);
    }
  }
  if (C10_UNLIKELY(native_ == nullptr)) {
    if (target_ == nullptr) target_ = &native_device(target_device_ = current_device());
    device_ = target_device_;
    native_ = target_;
  }
}

bool Call::locate(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kAccel) return false;
  device_ = target_device_ = tensor.device().index();
  native_ = target_ = &native_device_of(tensor);
  located_ = true;
  return true;
}

bool Call::locate(const IValue& value) {
  if (C10_LIKELY(value.isTensor())) return locate(value.toTensor());
  if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorList()) {
      if (locate(tensor)) return true;
    }
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      if (tensor && locate(*tensor)) return true;
    }
  }
  return false;
}

void Call::fail_device(const at::Tensor& tensor, const ArgSlot& slot) const {
  TORCH_CHECK(located_ || adopts_device_, "Expected a '", tensor.device().type(),
              "' device type for generator but found 'accel' (torch_accel: ", entry_.name,
              ": make the generator for the tensor's device)");
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ",
              c10::Device(kAccel, device_), " and ", tensor.device(), "! (torch_accel: when checking argument ",
              op_.schema().arguments()[slot.index].name(), " of ", entry_.name, ")");
}

void Call::enter(Mode mode) {
  mode_ = mode;
  const size_t base = stack_->size() - entry_.arguments;
  for (const auto& slot : entry_.slots) translate((*stack_)[base + slot.index], slot);
}

void Call::translate(IValue& value, const ArgSlot& slot) {
  switch (slot.kind) {
    case Kind::tensor:
      if (C10_LIKELY(value.isTensor())) value = enter(std::move(value).toTensor(), slot);
      return;
    case Kind::tensor_list:
      if (value.isTensorList()) {
        const auto tensors = std::move(value).toTensorList();
        c10::List<at::Tensor> translated;
        translated.reserve(tensors.size());
        for (const at::Tensor& tensor : tensors) translated.push_back(enter(tensor, slot));
        value = std::move(translated);
      }
      return;
    case Kind::optional_tensor_list:
      if (value.isOptionalTensorList() || value.isTensorList()) {
        const auto tensors = std::move(value).toOptionalTensorList();
        c10::List<std::optional<at::Tensor>> translated;
        translated.reserve(tensors.size());
        for (const std::optional<at::Tensor>& tensor : tensors) {
          translated.push_back(tensor ? std::optional(enter(*tensor, slot)) : std::nullopt);
        }
        value = std::move(translated);
      }
      return;
    case Kind::generator:
      if (mode_ == Mode::copy && !native_->host) {
        // A device's generator cannot drive a CPU kernel: seed a CPU one from it.
        const auto generator = value.isNone() ? default_generator(device_) : value.toGenerator();
        native_generator(generator);  // checks the device
        auto lent = at::globalContext().defaultGenerator(c10::Device(c10::DeviceType::CPU)).clone();
        lent.set_current_seed(generator.current_seed() + generator.get_offset());
        auto* impl = generator.unsafeGetGeneratorImpl();
        impl->set_offset(generator.get_offset() + 4);  // the next call draws other numbers
        value = std::move(lent);
      } else {
        value = native_generator(value.isNone() ? default_generator(device_) : value.toGenerator());
      }
      return;
    case Kind::device:
      if (value.isDevice() && adopts_) {
        value = mode_ == Mode::copy ? c10::Device(c10::DeviceType::CPU) : target_->device;
      }
      return;
    case Kind::stream:
      if (value.isStream() && value.toStream().device_type() == kAccel) {
        value = c10::Stream(c10::Stream::UNSAFE, native_->device, value.toStream().id());
      }
      return;
    case Kind::pin_memory:
      TORCH_CHECK(!adopts_ || !value.isBool() || !value.toBool(), "torch_accel: ", entry_.name,
                  ": expected pin_memory=False, got True: only dense CPU tensors can be pinned");
      return;
  }
}

at::Tensor Call::enter(at::Tensor tensor, const ArgSlot& slot) {
  if (C10_UNLIKELY(!tensor.defined())) return tensor;
  const auto device = tensor.device();
  if (C10_UNLIKELY(device.type() != kAccel)) {
    const bool legal = entry_.crosses || (device.type() == c10::DeviceType::CPU &&
                                          (slot.host_ok || (tensor.dim() == 0 && !slot.written)));
    if (!legal) fail_device(tensor, slot);
    // Known by identity when it comes back (copy_ into a CPU tensor).
    if (slot.written) pairs_.push_back({tensor, tensor, nullptr, nullptr, false, false});
    return tensor;
  }
  if (C10_UNLIKELY(device.index() != device_ && !entry_.crosses)) fail_device(tensor, slot);
  for (Pair& pair : pairs_) {
    // The same tensor twice must stay the same tensor: kernels tell full overlap from partial overlap by it.
    if (C10_UNLIKELY(pair.original.is_same(tensor))) {
      pair.written = pair.written || slot.written;
      return pair.translated;
    }
  }
  if (C10_LIKELY(mode_ == Mode::alias)) {
    at::Tensor out = alias(std::move(tensor), slot.written);
    if (slot.kind == Kind::tensor_list && slot.written) pairs_.back().listed = true;
    return out;
  }
  copied_ += tensor.layout() == c10::kStrided ? tensor.nbytes() : 0;
  at::Tensor host = tensor.to(c10::Device(c10::DeviceType::CPU));
  pairs_.push_back({std::move(tensor), host, nullptr, nullptr, slot.written, slot.kind == Kind::tensor_list});
  return host;
}

at::Tensor Call::alias(at::Tensor tensor, bool written) {
  const NativeDevice& native = C10_UNLIKELY(entry_.crosses) ? native_device_of(tensor) : *native_;
  auto* impl = tensor.unsafeGetTensorImpl();
  if (C10_UNLIKELY(!impl->has_storage())) return alias_components(std::move(tensor), native, written);

  const c10::Storage& storage = impl->unsafe_storage();
  Cell* cell = cell_of(storage);
  if (C10_UNLIKELY(!entry_.reuses || impl->key_set().has_any(kSpecial))) cell = nullptr;
  if (C10_LIKELY(cell != nullptr)) {
    auto* spare = static_cast<c10::TensorImpl*>(cell->spare.exchange(nullptr, std::memory_order_acquire));
    if (spare != nullptr) {
      auto reused = at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim(spare));
      if (C10_LIKELY(same_metadata(*impl, *spare))) {
        pairs_.push_back({std::move(tensor), reused, native_impl(*cell), cell, written, false});
        return reused;
      }
    }
  }
  c10::Storage native_side = native_storage(storage);
  auto* native_side_impl = native_side.unsafeGetStorageImpl();
  at::Tensor out = dense_alias(tensor, std::move(native_side), native);
  pairs_.push_back({std::move(tensor), out, native_side_impl, cell, written, false});
  return out;
}

at::Tensor Call::alias_components(at::Tensor tensor, const NativeDevice& native, bool written) {
  at::Tensor out;
  if (is_coo(tensor)) {
    out = make_coo(native.sparse, tensor, alias(coo(tensor).indices(), false), alias(coo(tensor).values(), false));
  } else if (is_compressed(tensor)) {
    const auto& from = compressed(tensor);
    out = make_compressed(native.sparse_csr, tensor, alias(from.compressed_indices(), false),
                          alias(from.plain_indices(), false), alias(from.values(), false));
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "torch_accel: ", entry_.name,
                                ": expected a strided or sparse tensor, got layout ", tensor.layout(),
                                " (convert it on the CPU)");
  }
  copy_requires_grad(*tensor.unsafeGetTensorImpl(), *out.unsafeGetTensorImpl());
  pairs_.push_back({std::move(tensor), out, nullptr, nullptr, written, false});
  return out;
}

// Aliases that nobody else holds wait in their cells for the next call.
void Call::put_back() {
  for (Pair& pair : pairs_) {
    if (pair.cell == nullptr || pair.translated.use_count() != 1) continue;
    void* before = pair.cell->spare.exchange(pair.translated.unsafeReleaseTensorImpl(), std::memory_order_acq_rel);
    if (C10_UNLIKELY(before != nullptr)) c10::raw::intrusive_ptr::decref(static_cast<c10::TensorImpl*>(before));
  }
}

// Written arguments come first: their storages may be what a result lies over.
void Call::finish() {
  if (entry_.writes) {
    for (Pair& pair : pairs_) {
      if (pair.written) write_back(pair);
    }
  }
  left_ = true;
}

void Call::leave() {
  finish();
  const size_t base = stack_->size() - entry_.returns;
  for (size_t i = 0; i < entry_.returns; ++i) {
    IValue& value = (*stack_)[base + i];
    const bool host = (entry_.host_returns >> i) & 1;
    if (host) continue;
    if (C10_LIKELY(value.isTensor())) {
      value = leave(std::move(value).toTensor());
    } else if (value.isTensorList()) {
      const auto tensors = std::move(value).toTensorList();
      c10::List<at::Tensor> results;
      results.reserve(tensors.size());
      for (const at::Tensor& tensor : tensors) results.push_back(leave(tensor));
      value = std::move(results);
    }
  }
}

at::Tensor Call::leave(at::Tensor result) {
  if (!result.defined()) return result;
  for (const Pair& pair : pairs_) {
    if (pair.translated.is_same(result)) return pair.original;
  }
  if (!adopts_) return result;
  if (C10_UNLIKELY(mode_ == Mode::copy)) {
    copied_ += result.layout() == c10::kStrided ? result.nbytes() : 0;
    return result.to(c10::Device(kAccel, target_device_));
  }
  return result.device().type() == target_->device.type() ? adopt(std::move(result)) : result;
}

at::Tensor Call::adopt(at::Tensor result) {
  auto* impl = result.unsafeGetTensorImpl();
  if (C10_UNLIKELY(!impl->has_storage())) {
    if (is_coo(result)) {
      return make_coo(DispatchKey::SparsePrivateUse1, result, leave(coo(result).indices()),
                      leave(coo(result).values()));
    }
    if (is_compressed(result)) {
      const auto& from = compressed(result);
      return make_compressed(DispatchKey::SparseCsrPrivateUse1, result, leave(from.compressed_indices()),
                             leave(from.plain_indices()), leave(from.values()));
    }
    TORCH_CHECK_NOT_IMPLEMENTED(false, "torch_accel: ", entry_.name,
                                ": expected a strided or sparse result, got layout ", result.layout(),
                                " (run the operator on the CPU)");
  }
  if (C10_UNLIKELY(result.use_count() != 1 || (impl->is_inference() && !c10::InferenceMode::is_enabled()))) {
    // The kernel keeps it, or it is a view of an alias and lacks what a tensor of the user's has: make another.
    if (is_nested(result)) {
      return make_nested(DispatchKey::NestedTensorPrivateUse1, result, adopt_storage(result.storage()));
    }
    auto fresh = c10::make_intrusive<c10::TensorImpl>(
        adopt_storage(result.storage()), DispatchKeySet(DispatchKey::PrivateUse1) | (impl->key_set() & kZeroTensor),
        result.dtype());
    copy_metadata(*impl, *fresh);
    fresh->set_allow_tensor_metadata_change(true);
    return at::Tensor(std::move(fresh));
  }
  impl->set_allow_tensor_metadata_change(true);
  impl->set_storage_keep_dtype(adopt_storage(result.storage()));
  impl->_change_backend_component_keys(c10::Device(kAccel, target_device_));
  return result;
}

c10::Storage Call::adopt_storage(const c10::Storage& native) {
  if (C10_UNLIKELY(native.use_count() != 1)) {
    auto* impl = native.unsafeGetStorageImpl();
    for (const Pair& pair : pairs_) {
      if (pair.native == impl) return pair.original.storage();
    }
    for (const Shared& shared : shared_) {
      if (shared.native == impl) return shared.accel;
    }
    shared_.push_back({impl, wrap_storage(native, target_device_)});
    return shared_.back().accel;
  }
  return wrap_storage(native, target_device_);
}

void Call::write_back(Pair& pair) {
  const at::Tensor& original = pair.original;
  const at::Tensor& written = pair.translated;
  if (mode_ == Mode::copy) {
    if (original.layout() == c10::kStrided && original.sizes() != written.sizes()) original.resize_(written.sizes());
    original.copy_(written);
    copied_ += written.layout() == c10::kStrided ? written.nbytes() : 0;
    return;
  }
  auto* impl = original.unsafeGetTensorImpl();
  // Above this key torch bumps the versions of written tensors, but not of those in a list: their kernels do.
  if (pair.listed && !impl->is_inference()) impl->bump_version();
  if (pair.native == nullptr) {
    if (is_coo(original)) {
      coo(original).raw_resize_(coo(written).sparse_dim(), coo(written).dense_dim(), written.sizes());
      coo(original).set_indices_and_values_unsafe(leave(coo(written).indices()), leave(coo(written).values()));
      coo(original).set_coalesced(coo(written).coalesced());
    } else if (is_compressed(original)) {
      const auto& from = compressed(written);
      compressed(original).set_member_tensors(leave(from.compressed_indices()), leave(from.plain_indices()),
                                              leave(from.values()), written.sizes());
    }
    return;
  }
  if (C10_UNLIKELY(written.storage().unsafeGetStorageImpl() != pair.native)) {
    impl->set_storage_keep_dtype(adopt_storage(written.storage()));
    pair.cell = nullptr;
  } else {
    sync_storage(original.storage());
  }
  if (C10_UNLIKELY(is_nested(original))) return;
  if (C10_UNLIKELY(written.is_conj() != original.is_conj())) impl->_set_conj(written.is_conj());
  if (C10_UNLIKELY(written.is_neg() != original.is_neg())) impl->_set_neg(written.is_neg());
  if (C10_UNLIKELY(written.sizes() != original.sizes() || written.strides() != original.strides() ||
                   written.storage_offset() != original.storage_offset())) {
    impl->set_sizes_and_strides(written.sizes(), written.strides(), written.storage_offset());
  }
}

Call::~Call() {
  if (C10_UNLIKELY(!left_ && mode_ == Mode::alias)) show_partial_work();
  put_back();
}

void Call::show_partial_work() {
  // The kernel threw: what it had resized by then shows, as it does on the native device.
  for (Pair& pair : pairs_) {
    if (!pair.written || !pair.native) continue;
    try {
      write_back(pair);
    } catch (const std::exception&) {  // the kernel's own error is on its way
    }
  }
}

void accel_entry(const c10::OperatorHandle& op, OpEntry& entry, DispatchKey functionality, torch::jit::Stack* stack) {
  ensure_ready();
  c10::impl::ExcludeDispatchKeyGuard below_autograd(kAbove);
  if (C10_UNLIKELY(entry.crosses)) count_copy(*stack, entry);
  Call call(op, entry, *stack);
  const DispatchKey key = key_of(call.native(), functionality);
  switch (entry.policy_for(op, key, call.native().host)) {
    case Policy::fallback:
      fall_back(op, entry, call, *stack);
      return;
    case Policy::missing:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "torch_accel: ", entry.name, ": expected a kernel for ", key,
                                  " or the CPU, got none (see torch_accel.op_policy)");
    default:
      break;
  }
  std::optional<LentGenerator> lent;
  if (C10_UNLIKELY(entry.seeded)) lent.emplace(call.device(), call.native().device);
  call.enter(Call::Mode::alias);
  op.redispatchBoxed(DispatchKeySet(key), stack);
  call.leave();
}

}  // namespace accel
