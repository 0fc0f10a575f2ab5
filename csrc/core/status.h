// Status and Result: how everything below csrc/torch reports failure.
//
// Invariants
//   * Codes have the numbers of absl::StatusCode, which PJRT shares: mapping between them is the identity.
//   * An ok Status has no message. A Result holds a value exactly when its status is ok.
//   * No exception crosses a call into a backend or a callback out of one; who needs one makes it from the Status.
// Values without owner or thread rules of their own.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>

namespace accel {

enum class Code : int {
  ok = 0,
  cancelled = 1,
  unknown = 2,
  invalid_argument = 3,
  deadline_exceeded = 4,
  not_found = 5,
  already_exists = 6,
  permission_denied = 7,
  resource_exhausted = 8,
  failed_precondition = 9,
  aborted = 10,
  out_of_range = 11,
  unimplemented = 12,
  internal = 13,
  unavailable = 14,
  data_loss = 15,
  unauthenticated = 16,
};

inline const char* code_name(Code code) {
  static constexpr const char* names[] = {
      "OK",        "CANCELLED",       "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS",  "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",    "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED",
  };
  int number = static_cast<int>(code);
  return number >= 0 && number <= 16 ? names[number] : "UNKNOWN";
}

struct [[nodiscard]] Status {
  Code code = Code::ok;
  std::string message;

  bool ok() const { return code == Code::ok; }
};

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  // The value; only after ok().
  T& operator*() { return *value_; }
  T* operator->() { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

}  // namespace accel
