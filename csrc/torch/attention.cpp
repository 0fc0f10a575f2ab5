// Scaled dot product attention: which implementation, asked of the native key.
//
// Torch picks the implementation by device type above the dispatcher. For accel the choice is the native key's own,
// with one difference: torch sends "flash" on a device that is not CUDA's to the operator named
// ..._flash_attention_for_cpu. Over a device key that operator therefore carries the device's flash kernel (without
// dropout and with a head size that needs no padding; the other cases take the memory-efficient kernel, or plain
// maths).
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_fused_sdp_choice_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "torch/call.h"

namespace accel {
namespace {

using at::Tensor;
using sdp::SDPBackend;

}  // namespace

// A tensor that looks like this one and has no memory: the choice looks at sizes, strides, dtype and requires_grad,
// also of fake tensors, whose storage is on another device.
static Tensor question(const Tensor& tensor, const NativeDevice& native) {
  c10::Storage nothing = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), c10::SymInt(0),
                                                               c10::DataPtr(nullptr, native.device),
                                                               /*allocator=*/nullptr, /*resizable=*/false);
  auto impl =
      c10::make_intrusive<c10::TensorImpl>(std::move(nothing), c10::DispatchKeySet(native.dense), tensor.dtype());
  impl->set_sizes_and_strides(tensor.sym_sizes(), tensor.sym_strides());
  Tensor out(std::move(impl));
  if (tensor.requires_grad()) out.set_requires_grad(true);
  return out;
}

int64_t fused_sdp_choice(const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask,
                         double dropout, bool is_causal, std::optional<double> scale, bool enable_gqa) {
  ensure_ready();
  const auto& native = native_device_of(query);
  const auto ask = [&](const Tensor& tensor) { return question(tensor, native); };
  // Straight to the native key: above it, a fake-tensor mode refuses what is not fake.
  const auto chosen = static_cast<SDPBackend>(at::_ops::_fused_sdp_choice::redispatch(
      c10::DispatchKeySet(native.dense), ask(query), ask(key), ask(value),
      mask ? std::make_optional(ask(*mask)) : std::nullopt, dropout, is_causal, scale, enable_gqa));
  if (native.host || chosen != SDPBackend::flash_attention) return static_cast<int64_t>(chosen);
  if (dropout == 0.0 && query.size(-1) % 8 == 0 && !(mask && mask->defined())) return static_cast<int64_t>(chosen);
  const bool efficient = at::globalContext().userEnabledMemEfficientSDP() && !enable_gqa;
  return static_cast<int64_t>(efficient ? SDPBackend::efficient_attention : SDPBackend::math);
}

namespace {

bool on_host(const torch::jit::Stack& stack, const OpEntry& entry) {
  return native_device_of(stack[stack.size() - entry.arguments].toTensor()).host;
}

std::vector<c10::IValue> arguments(torch::jit::Stack* stack, const OpEntry& entry) {
  std::vector<c10::IValue> out(stack->end() - entry.arguments, stack->end());
  torch::jit::drop(*stack, entry.arguments);
  return out;
}

void flash(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  ensure_ready();
  auto& entry = op_entry(op);
  if (on_host(*stack, entry)) return accel_entry(op, entry, c10::DispatchKey::Dense, stack);
  const auto a = arguments(stack, entry);
  auto out =
      at::_scaled_dot_product_flash_attention(a[0].toTensor(), a[1].toTensor(), a[2].toTensor(), a[3].toDouble(),
                                              a[4].toBool(), /*return_debug_mask=*/false, a[6].toOptional<double>());
  torch::jit::push(*stack, std::get<0>(out), std::get<1>(out));
}

void flash_backward(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  ensure_ready();
  auto& entry = op_entry(op);
  if (on_host(*stack, entry)) return accel_entry(op, entry, c10::DispatchKey::Dense, stack);
  const auto a = arguments(stack, entry);
  const Tensor &query = a[1].toTensor(), &key = a[2].toTensor();
  // Without dropout the random state is not read.
  const Tensor state = at::empty({}, query.options().dtype(at::kLong));
  auto out = at::_scaled_dot_product_flash_attention_backward(
      a[0].toTensor(), query, key, a[3].toTensor(), a[4].toTensor(), a[5].toTensor(), Tensor(), Tensor(), query.size(2),
      key.size(2), a[6].toDouble(), a[7].toBool(), state, state, a[9].toOptional<double>());
  torch::jit::push(*stack, std::get<0>(out), std::get<1>(out), std::get<2>(out));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_flash_attention_for_cpu", torch::CppFunction::makeFromBoxedFunction<&flash>());
  m.impl("_scaled_dot_product_flash_attention_for_cpu_backward",
         torch::CppFunction::makeFromBoxedFunction<&flash_backward>());
}

}  // namespace
}  // namespace accel

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &accel::fused_sdp_choice)
}
