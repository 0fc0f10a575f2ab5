#include "torch/call.h"

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
    default:
      return native.dense;
  }
}

// Dealt with before an operator arrives here; tensors that a native kernel makes on its way carry them again.
const DispatchKeySet kAbove = c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;
const DispatchKeySet kMathBits({DispatchKey::Conjugate, DispatchKey::Negative, DispatchKey::ZeroTensor});

bool is_quantized(const at::Tensor& tensor) { return tensor.key_set().has(DispatchKey::Quantized); }

// Metadata that a strided alias takes over; `impl` has the storage already.
void copy_metadata(const c10::TensorImpl& from, c10::TensorImpl& to) {
  to.set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  const auto keys = from.key_set();
  if (C10_UNLIKELY(keys.has_any(kMathBits))) {
    to._set_conj(keys.has(DispatchKey::Conjugate));
    to._set_neg(keys.has(DispatchKey::Negative));
    to._set_zero(keys.has(DispatchKey::ZeroTensor));
  }
  if (C10_UNLIKELY(from.is_wrapped_number())) to.set_wrapped_number(true);
  to.set_allow_tensor_metadata_change(from.allow_tensor_metadata_change());
}

at::Tensor dense_alias(const at::Tensor& tensor, c10::Storage storage, const NativeDevice& native) {
  auto& from = *tensor.unsafeGetTensorImpl();
  c10::intrusive_ptr<c10::TensorImpl> impl;
  if (C10_UNLIKELY(is_quantized(tensor))) {
    impl = c10::make_intrusive<at::QTensorImpl>(std::move(storage), DispatchKeySet(native.quantized), tensor.dtype(),
                                                static_cast<at::QTensorImpl&>(from).quantizer());
  } else {
    // ImplType::VIEW: no autograd keys and no version counter are wanted.
    impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, std::move(storage), DispatchKeySet(native.dense),
                                                tensor.dtype());
  }
  copy_metadata(from, *impl);
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

// Kernels that draw random numbers but take no generator use the native device's default one: lend it the state of ours.
class LendDefaultGenerator {
 public:
  LendDefaultGenerator(const NativeDevice& native, c10::DeviceIndex index)
      : theirs_(native.host ? at::globalContext().defaultGenerator(c10::Device(c10::DeviceType::CPU))
                            : at::globalContext().defaultGenerator(native.device)),
        ours_(native_generator(default_generator(index))) {
    swap();
  }
  ~LendDefaultGenerator() { swap(); }

 private:
  void swap() {
    std::scoped_lock lock(theirs_.mutex(), ours_.mutex());
    auto state = theirs_.unsafeGetGeneratorImpl()->get_state();
    theirs_.unsafeGetGeneratorImpl()->set_state(*ours_.unsafeGetGeneratorImpl()->get_state());
    ours_.unsafeGetGeneratorImpl()->set_state(*state);
  }
  at::Generator theirs_, ours_;
};

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

at::Tensor alias_dense(const at::Tensor& tensor, const NativeDevice& native) {
  return dense_alias(tensor, native_storage(tensor.storage()), native);
}

Call::Call(const c10::OperatorHandle& op, const OpEntry& entry, torch::jit::Stack& stack)
    : op_(op), entry_(entry), stack_(stack) {
  // The first accel tensor decides, then an accel device argument, then the current device.
  std::optional<c10::Device> asked;
  const size_t base = stack.size() - entry.arguments;
  for (const auto& slot : entry.slots) {
    const IValue& value = stack[base + slot.index];
    if (C10_LIKELY(value.isTensor())) {
      check(value.toTensor(), slot);
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) check(tensor, slot);
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
        if (tensor) check(*tensor, slot);
      }
    } else if (value.isDevice()) {
      asked = value.toDevice();
    }
  }
  if (asked) {
    adopts_ = asked->type() == kAccel;
    if (adopts_) {
      target_device_ = with_index(*asked).index();
      target_ = &native_device(target_device_);
    }
  }
  if (device_ < 0) {
    device_ = target_device_ >= 0 ? target_device_ : current_device();
    native_ = &native_device(device_);
  }
  if (target_ == nullptr) {
    target_ = native_;
    target_device_ = device_;
  }
}

void Call::check(const at::Tensor& tensor, const ArgSlot& slot) {
  if (!tensor.defined()) return;
  const auto device = tensor.device();
  if (C10_LIKELY(device.type() == kAccel)) {
    if (device_ < 0) {
      device_ = device.index();
      native_ = &native_device_of(tensor);
    }
    if (C10_LIKELY(device.index() == device_ || entry_.crosses)) return;
  } else if (entry_.crosses || (device.type() == c10::DeviceType::CPU &&
                                (slot.host_ok || (tensor.dim() == 0 && !slot.written)))) {
    return;
  }
  const auto here = device_ >= 0 ? c10::Device(kAccel, device_) : c10::Device(kAccel, current_device());
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, ", here, " and ",
              device, "! (torch_accel: when checking argument ", op_.schema().arguments()[slot.index].name(), " of ",
              entry_.name, ")");
}

void Call::enter(Mode mode) {
  mode_ = mode;
  const size_t base = stack_.size() - entry_.arguments;
  for (const auto& slot : entry_.slots) translate(stack_[base + slot.index], slot);
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
  if (!tensor.defined()) return tensor;
  if (tensor.device().type() != kAccel) {
    // Known by identity when it comes back (copy_ into a CPU tensor).
    if (slot.written) pairs_.push_back({tensor, tensor, nullptr, false});
    return tensor;
  }
  if (C10_LIKELY(mode_ == Mode::alias)) return alias(std::move(tensor), slot.written);
  copied_ += tensor.layout() == c10::kStrided ? tensor.nbytes() : 0;
  at::Tensor host = tensor.to(c10::Device(c10::DeviceType::CPU));
  pairs_.push_back({std::move(tensor), host, nullptr, slot.written});
  return host;
}

at::Tensor Call::alias(at::Tensor tensor, bool written) {
  for (Pair& pair : pairs_) {
    // The same tensor twice must stay the same tensor: kernels tell full overlap from partial overlap by it.
    if (C10_UNLIKELY(pair.original.is_same(tensor))) {
      pair.written = pair.written || written;
      return pair.translated;
    }
  }
  const NativeDevice& native = C10_UNLIKELY(entry_.crosses) ? native_device_of(tensor) : *native_;
  if (C10_LIKELY(tensor.unsafeGetTensorImpl()->has_storage())) {
    auto storage = native_storage(tensor.storage());
    auto* impl = storage.unsafeGetStorageImpl();
    at::Tensor out = dense_alias(tensor, std::move(storage), native);
    pairs_.push_back({std::move(tensor), out, impl, written});
    return out;
  }
  at::Tensor out;
  if (is_coo(tensor)) {
    out = make_coo(native.sparse, tensor, alias(coo(tensor).indices(), false), alias(coo(tensor).values(), false));
  } else if (is_compressed(tensor)) {
    const auto& from = compressed(tensor);
    out = make_compressed(native.sparse_csr, tensor, alias(from.compressed_indices(), false),
                          alias(from.plain_indices(), false), alias(from.values(), false));
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "torch_accel: ", entry_.name, ": expected a strided or sparse tensor, got layout ",
                                tensor.layout(), " (convert it on the CPU)");
  }
  pairs_.push_back({std::move(tensor), out, nullptr, written});
  return out;
}

void Call::leave() {
  // Written arguments first: their storages may be what a result lies over.
  if (entry_.writes) {
    for (const Pair& pair : pairs_) {
      if (pair.written) write_back(pair);
    }
  }
  left_ = true;
  const size_t base = stack_.size() - entry_.returns;
  for (size_t i = 0; i < entry_.returns; ++i) {
    IValue& value = stack_[base + i];
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
    TORCH_CHECK_NOT_IMPLEMENTED(false, "torch_accel: ", entry_.name, ": expected a strided or sparse result, got layout ",
                                result.layout(), " (run the operator on the CPU)");
  }
  if (C10_UNLIKELY(result.use_count() != 1 || (impl->is_inference() && !c10::InferenceMode::is_enabled()))) {
    // The kernel keeps it, or it is a view of an alias and lacks what a tensor of the user's has: make another.
    auto fresh = c10::make_intrusive<c10::TensorImpl>(adopt_storage(result.storage()),
                                                      DispatchKeySet(DispatchKey::PrivateUse1), result.dtype());
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

void Call::write_back(const Pair& pair) {
  const at::Tensor& original = pair.original;
  const at::Tensor& written = pair.translated;
  if (mode_ == Mode::copy) {
    if (original.layout() == c10::kStrided && original.sizes() != written.sizes()) original.resize_(written.sizes());
    original.copy_(written);
    copied_ += written.layout() == c10::kStrided ? written.nbytes() : 0;
    return;
  }
  auto* impl = original.unsafeGetTensorImpl();
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
  } else {
    sync_storage(original.storage());
  }
  if (C10_UNLIKELY(written.sizes() != original.sizes() || written.strides() != original.strides() ||
                   written.storage_offset() != original.storage_offset())) {
    impl->set_sizes_and_strides(written.sizes(), written.strides(), written.storage_offset());
  }
  if (C10_UNLIKELY(impl->key_set().has(DispatchKey::ZeroTensor) != written._is_zerotensor())) {
    impl->_set_zero(written._is_zerotensor());
  }
}

Call::~Call() {
  if (left_ || mode_ == Mode::copy) return;
  // The kernel threw: what it had resized by then shows, as it does on the native device.
  for (const Pair& pair : pairs_) {
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
  std::optional<LendDefaultGenerator> lent;
  if (C10_UNLIKELY(entry.seeded)) lent.emplace(call.native(), call.device());
  call.enter(Call::Mode::alias);
  op.redispatchBoxed(DispatchKeySet(key), stack);
  call.leave();
}

}  // namespace accel
