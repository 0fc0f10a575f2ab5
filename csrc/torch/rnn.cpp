// The fused LSTM and GRU cells. Torch's recurrent layers call them for any device of this kind, but only CUDA has
// kernels: where the native key has none, they are composed here of pointwise operators on accel tensors.
//
// The workspaces are ours on that path, forward and backward agree on them:
//   LSTM  the four gates after their activation, [N, 4 H] in the order i, f, g, o
//   GRU   r, z, n after their activation, the hidden state, and the hidden part of n, [N, 5 H]
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "torch/call.h"

namespace accel {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

// Sends the call to the native key when it has the operator.
template <typename Composite>
void native_or(const c10::OperatorHandle& op, torch::jit::Stack* stack, Composite composite) {
  ensure_ready();
  const auto& entry = op_entry(op);
  const auto base = stack->size() - entry.arguments;
  // The gradients that come first in a backward may be undefined; the third argument always is a tensor.
  const auto& first = (*stack)[base];
  const auto& native = native_device_of(first.isTensor() && first.toTensor().defined() ? first.toTensor()
                                                                                       : (*stack)[base + 2].toTensor());
  if (op.hasKernelForDispatchKey(native.dense)) {
    accel_entry(op, op_entry(op), c10::DispatchKey::Dense, stack);
    return;
  }
  std::vector<c10::IValue> args(stack->begin() + base, stack->end());
  torch::jit::drop(*stack, entry.arguments);
  composite(args, stack);
}

Tensor with_bias(const Tensor& gates, const OptionalTensor& bias) {
  return bias && bias->defined() ? gates + *bias : gates;
}
OptionalTensor optional(const c10::IValue& value) { return value.isNone() ? OptionalTensor() : value.toTensor(); }

void lstm_cell(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  native_or(op, stack, [](const auto& a, torch::jit::Stack* out) {
    const Tensor &input = a[0].toTensor(), &hidden = a[1].toTensor(), &cx = a[2].toTensor();
    const auto gates = (with_bias(input, optional(a[3])) + with_bias(hidden, optional(a[4]))).chunk(4, 1);
    const Tensor i = at::sigmoid(gates[0]), f = at::sigmoid(gates[1]), g = at::tanh(gates[2]),
                 o = at::sigmoid(gates[3]);
    const Tensor cy = f * cx + i * g;
    torch::jit::push(*out, o * at::tanh(cy), cy, at::cat({i, f, g, o}, 1));
  });
}

void lstm_cell_backward(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  native_or(op, stack, [](const auto& a, torch::jit::Stack* out) {
    const OptionalTensor grad_hy = optional(a[0]), grad_cy = optional(a[1]);
    const Tensor &cx = a[2].toTensor(), &cy = a[3].toTensor(), &workspace = a[4].toTensor();
    const bool has_bias = a[5].toBool();
    const bool hy = grad_hy && grad_hy->defined(), cy_grad = grad_cy && grad_cy->defined();
    if (!hy && !cy_grad) return torch::jit::push(*out, Tensor(), Tensor(), Tensor());
    const auto gates = workspace.chunk(4, 1);
    const Tensor &i = gates[0], &f = gates[1], &g = gates[2], &o = gates[3];
    const Tensor tanh_cy = at::tanh(cy);
    Tensor grad_c, grad_o;
    if (hy) {
      grad_c = at::tanh_backward(*grad_hy * o, tanh_cy);
      grad_o = at::sigmoid_backward(*grad_hy * tanh_cy, o);
    } else {
      grad_o = at::zeros_like(o);
    }
    if (cy_grad) grad_c = grad_c.defined() ? grad_c + *grad_cy : *grad_cy;
    const Tensor grad_gates = at::cat({at::sigmoid_backward(grad_c * g, i), at::sigmoid_backward(grad_c * cx, f),
                                       at::tanh_backward(grad_c * i, g), grad_o},
                                      1);
    torch::jit::push(*out, grad_gates, grad_c * f, has_bias ? grad_gates.sum(0) : Tensor());
  });
}

void gru_cell(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  native_or(op, stack, [](const auto& a, torch::jit::Stack* out) {
    const Tensor& hx = a[2].toTensor();
    const auto input = with_bias(a[0].toTensor(), optional(a[3])).chunk(3, 1);
    const auto hidden = with_bias(a[1].toTensor(), optional(a[4])).chunk(3, 1);
    const Tensor r = at::sigmoid(input[0] + hidden[0]), z = at::sigmoid(input[1] + hidden[1]);
    const Tensor n = at::tanh(input[2] + r * hidden[2]);
    torch::jit::push(*out, n + z * (hx - n), at::cat({r, z, n, hx, hidden[2]}, 1));
  });
}

void gru_cell_backward(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  native_or(op, stack, [](const auto& a, torch::jit::Stack* out) {
    const Tensor &grad = a[0].toTensor(), &workspace = a[1].toTensor();
    const bool has_bias = a[2].toBool();
    const auto saved = workspace.chunk(5, 1);
    const Tensor &r = saved[0], &z = saved[1], &n = saved[2], &hx = saved[3], &hidden_n = saved[4];
    const Tensor grad_z = at::sigmoid_backward(grad * (hx - n), z);
    const Tensor grad_n = at::tanh_backward(grad * (1 - z), n);
    const Tensor grad_r = at::sigmoid_backward(grad_n * hidden_n, r);
    const Tensor grad_input = at::cat({grad_r, grad_z, grad_n}, 1),
                 grad_hidden = at::cat({grad_r, grad_z, grad_n * r}, 1);
    torch::jit::push(*out, grad_input, grad_hidden, grad * z, has_bias ? grad_input.sum(0) : Tensor(),
                     has_bias ? grad_hidden.sum(0) : Tensor());
  });
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_thnn_fused_lstm_cell", torch::CppFunction::makeFromBoxedFunction<&lstm_cell>());
  m.impl("_thnn_fused_lstm_cell_backward_impl", torch::CppFunction::makeFromBoxedFunction<&lstm_cell_backward>());
  m.impl("_thnn_fused_gru_cell", torch::CppFunction::makeFromBoxedFunction<&gru_cell>());
  m.impl("_thnn_fused_gru_cell_backward", torch::CppFunction::makeFromBoxedFunction<&gru_cell_backward>());
}

}  // namespace
}  // namespace accel
