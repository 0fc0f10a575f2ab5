// Call: one operator call, translated to another device and back.
//
// Two ways in, one mechanism:
//   alias  the native route: every accel tensor becomes a tensor of the native device over the same memory; nothing is
//          copied, results are adopted.
//   copy   the CPU fallback: every accel tensor is copied to the CPU, results and written arguments are copied back.
//
// Invariants
//   * An alias shares the native storage and has the sizes, strides, offset, dtype, conj/neg bits and requires_grad of
//   its
//     original; it carries no autograd, autocast or version state beyond that, which were dealt with above this key.
//     The same holds for sparse, nested and quantized tensors through their components.
//   * A returned alias comes back as the very tensor it stands for; a result over the storage of an argument comes back
//     over that argument's accel storage; anything else gets a storage of its own.
//   * Arguments that the schema marks as written show new sizes, strides and storage afterwards, also when the kernel
//     throws.
//   * Tensors that are not on accel stay what they are: CPU scalars, CPU index tensors, operands of a copy.
#pragma once

#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include "torch/device.h"
#include "torch/op_table.h"

namespace accel {

// Dealt with before an operator arrives here; tensors that a native kernel makes on its way carry these keys again.
inline const c10::DispatchKeySet kAbove =
    c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset;

class Call {
 public:
  enum class Mode : uint8_t { alias, copy };

  // Finds the device that the call is for.
  Call(const c10::OperatorHandle& op, const OpEntry& entry, torch::jit::Stack& stack);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call();

  // For a caller that has no stack (unboxed.cpp). It hands over the operands one by one: locate() until one is on
  // accel, then enter() each, and after the kernel finish() and leave() each result.
  Call(const c10::OperatorHandle& op, const OpEntry& entry) : op_(op), entry_(entry) {}
  bool locate(const at::Tensor& tensor);
  at::Tensor enter(at::Tensor tensor, const ArgSlot& slot);
  void finish();
  at::Tensor leave(at::Tensor result);

  const NativeDevice& native() const { return *native_; }
  c10::DeviceIndex device() const { return device_; }
  // Translates the arguments on the stack. Throws RuntimeError when they lie on different devices.
  void enter(Mode mode);
  void leave();  // translates the results on the stack, writes arguments back
  size_t copied_bytes() const { return copied_; }

 private:
  struct Pair {
    at::Tensor original, translated;
    c10::StorageImpl* native;  // storage of `translated` when it was made; null for sparse
    Cell* cell;                // takes `translated` back as its spare; null when it must not
    bool written;
    bool listed;  // element of a tensor list
  };
  struct Shared {
    c10::StorageImpl* native;
    c10::Storage accel;
  };

  void translate(c10::IValue& value, const ArgSlot& slot);
  at::Tensor alias(at::Tensor tensor, bool written);
  at::Tensor alias_components(at::Tensor tensor, const NativeDevice& native, bool written);
  void put_back();
  void show_partial_work();
  at::Tensor adopt(at::Tensor result);
  c10::Storage adopt_storage(const c10::Storage& native);
  void write_back(Pair& pair);
  bool locate(const c10::IValue& value);
  [[noreturn]] void fail_device(const at::Tensor& tensor, const ArgSlot& slot) const;

  const c10::OperatorHandle& op_;
  const OpEntry& entry_;
  torch::jit::Stack* stack_ = nullptr;
  const NativeDevice* native_ = nullptr;  // where the operator runs
  const NativeDevice* target_ = nullptr;  // where results live: differs from native_ only for copies between devices
  c10::DeviceIndex device_ = -1, target_device_ = -1;
  Mode mode_ = Mode::alias;
  bool adopts_ = true;          // false when the caller asked for results on another device type
  bool located_ = false;        // an operand is on accel
  bool adopts_device_ = false;  // an accel device was asked for
  bool left_ = false;
  size_t copied_ = 0;
  c10::SmallVector<Pair, 6> pairs_;
  c10::SmallVector<Shared, 1> shared_;
};

// The boxed kernel behind every bound operator, and the seam between the routes. `functionality` is Dense, Sparse,
// SparseCsr or Quantized: the kind of accel key that the operator came in on.
void accel_entry(const c10::OperatorHandle& op, OpEntry& entry, c10::DispatchKey functionality,
                 torch::jit::Stack* stack);

// Runs the call on the CPU, or throws NotImplementedError, as the policy says; counts it.
void fall_back(const c10::OperatorHandle& op, OpEntry& entry, Call& call, torch::jit::Stack& stack);

}  // namespace accel
