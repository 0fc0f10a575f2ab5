// OpEntry: what the boxed kernel must know of an operator, read once from its schema.
//
// Invariants
//   * One OpEntry per operator overload, made once, never freed, found without a lookup by the kernel bound to it.
//   * Every non-composite operator that torch has is bound at load by walking the dispatcher (bind_operators), so a new
//     torch release with new operators needs no change here. Left out, with the reason in op_table.cpp: views and other
//     operators whose composite kernel is right for any plain strided tensor, and those of structural.cpp.
//   * The policy is decided at an operator's first use on a device key and can only be overruled by set_op_policy.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <atomic>
#include <string>

namespace accel {

enum class Policy : uint8_t { unknown, native, fallback, missing };

struct ArgSlot {
  enum class Kind : uint8_t { tensor, tensor_list, optional_tensor_list, generator, device, stream, pin_memory };
  uint16_t index;  // position among the arguments
  Kind kind;
  bool written = false;  // the operator writes it
  bool host_ok = false;  // a CPU tensor of any size is legal here beside device tensors (indices, lengths)
};

struct OpEntry {
  explicit OpEntry(const c10::OperatorHandle& op);

  std::string name;  // "aten::add.Tensor"
  c10::SmallVector<ArgSlot, 8> slots;
  uint16_t arguments, returns;
  bool writes = false;       // some slot is written
  bool crosses = false;      // a copy between devices: operands may be anywhere
  bool seeded = false;       // draws random numbers and takes no generator
  bool view = false;         // result aliases an argument
  bool reuses = false;       // its aliases may be kept for the next call
  int16_t device_slot = -1;  // position of the device argument
  uint8_t host_returns = 0;  // bit per return that is a CPU tensor on every device
  std::atomic<Policy> forced{Policy::unknown};
  std::atomic<Policy> policy[2] = {Policy::unknown, Policy::unknown};  // on the host key, on a device key

  Policy policy_for(const c10::OperatorHandle& op, c10::DispatchKey key, bool host) {
    const auto overruled = forced.load(std::memory_order_relaxed);
    if (C10_UNLIKELY(overruled != Policy::unknown)) return overruled;
    const auto known = policy[host ? 0 : 1].load(std::memory_order_relaxed);
    return C10_LIKELY(known != Policy::unknown) ? known : decide(op, key, host);
  }

 private:
  Policy decide(const c10::OperatorHandle& op, c10::DispatchKey key, bool host);
};

// Entry of any operator, made on first request.
OpEntry& op_entry(const c10::OperatorHandle& op);

void bind_operators();
// Kernels registered elsewhere that decide by the entry's policy like the boxed one (unboxed.cpp).
void note_bound(const c10::OperatorName& name);
// "native" or "fallback"; empty to decide by the device again. Throws ValueError for anything else, for an unknown
// operator, and for an operator that may never fall back (views, factories, structural ones).
void set_op_policy(const std::string& op, const std::string& policy);
// "native", "fallback", "missing", "structural" or "composite", for the current device.
std::string op_policy(const std::string& op);

}  // namespace accel
