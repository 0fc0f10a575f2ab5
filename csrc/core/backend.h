// The seam to whatever compiles and runs programs: five small classes, without a type of torch, PJRT or a vendor.
//
// Ownership
//   * Everything is reference counted, and every object keeps what it needs alive: a Buffer, Executable or Device may
//     outlive its Backend. The library behind a backend is never unloaded.
//   * Destroying the Backend waits for the executions that it started. The process-wide owner destroys it before static
//     destructors run, as a client that is alive then has threads that run into them.
// Invariants
//   * Host data is dense and row-major, always. How a device lays a buffer out is the device's own affair.
//   * A buffer's value never changes. An executable may consume an argument instead (donation): then the argument's
//     deleted() is true and every use of it is an error, reported as a Status.
//   * Work is asynchronous: a call returns when the work is accepted. A failure after that is the status of the event,
//     and of everything computed from the result. Neither harms the backend.
//   * An optional feature that is absent is UNIMPLEMENTED with the feature's name.
// Threads: any thread may call anything. Callbacks run on a thread of the backend, or at once in the calling thread
// when the event is ready already: they must be short, must not throw, must not wait for the device and must not take a
// lock that a caller of this interface may hold, such as Python's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/status.h"

namespace accel {

class Event;
class Buffer;
class Executable;
class Device;
using EventPtr = std::shared_ptr<Event>;
using BufferPtr = std::shared_ptr<Buffer>;
using ExecutablePtr = std::shared_ptr<Executable>;
using DevicePtr = std::shared_ptr<Device>;

// Something that will be over, with a status.
class Event {
 public:
  virtual ~Event() = default;
  virtual Result<bool> ready() = 0;
  // Blocks until it is over.
  virtual Status await() = 0;
  // Calls once, with the event's status. An error of on_ready itself goes to the callback as well.
  virtual void on_ready(std::function<void(const Status&)> callback) = 0;
};

struct TensorSpec {
  Dtype dtype;
  std::vector<int64_t> dims;

  size_t elements() const {
    size_t count = 1;
    for (int64_t dim : dims) count *= static_cast<size_t>(dim);
    return count;
  }
  // In host memory.
  size_t bytes() const { return elements() * static_cast<size_t>(find_dtype(dtype)->bytes); }
};

// One array in a device's memory.
class Buffer {
 public:
  Buffer(TensorSpec spec, int device) : spec_(std::move(spec)), device_(device) {}
  virtual ~Buffer() = default;

  const TensorSpec& spec() const { return spec_; }
  int device() const { return device_; }  // Device::index

  // Over when the value is there; its status says whether it could be computed.
  virtual Result<EventPtr> ready_event() = 0;
  // Copies spec().bytes() bytes to `to`, which lives until the event is over. Waits for the value, asynchronously.
  virtual Result<EventPtr> to_host(void* to, size_t bytes) = 0;
  // Gives the memory back now, or once running work has read it; the object stays and is deleted() from here on.
  virtual Status release() = 0;
  virtual bool deleted() = 0;
  // Optional. Address in device memory, valid while the buffer lives and nobody consumes it.
  virtual Result<uintptr_t> address() = 0;

 private:
  TensorSpec spec_;
  int device_;
};

struct ExecutableMemory {  // bytes
  int64_t code = 0, arguments = 0, outputs = 0, aliased = 0, temporary = 0;
};

struct Execution {
  std::vector<BufferPtr> outputs;  // in the order of the program's results
  EventPtr done;                   // over when the device has finished; errors of the computation are its status
};

// A compiled program, loaded for one device.
class Executable {
 public:
  Executable(std::vector<TensorSpec> outputs, int device) : outputs_(std::move(outputs)), device_(device) {}
  virtual ~Executable() = default;

  const std::vector<TensorSpec>& outputs() const { return outputs_; }
  int device() const { return device_; }

  // The arguments have the types and shapes of the program's parameters: the caller sees to that, and a backend may
  // notice a wrong number of bytes only. Consumes the arguments whose memory the program reuses for an output
  // (attribute tf.aliasing_output), except those in `keep`, by index in `arguments`. Arguments are kept alive until the
  // execution is over.
  virtual Result<Execution> execute(std::span<const BufferPtr> arguments, std::span<const int64_t> keep) = 0;
  // Optional. Bytes for Device::load of a backend with the same fingerprint.
  virtual Result<std::string> serialize() = 0;
  // Optional. What one execution needs.
  virtual Result<ExecutableMemory> memory() = 0;

 private:
  std::vector<TensorSpec> outputs_;
  int device_;
};

struct DeviceMemory {  // bytes, and numbers of allocations
  int64_t bytes_in_use = 0;
  std::optional<int64_t> peak_bytes_in_use, bytes_limit, bytes_reserved, pool_bytes, largest_alloc_bytes, allocs;
};

// How long from_host may read the host's memory.
enum class HostData {
  during_call,     // copied before from_host returns
  until_released,  // unchanged until `released` is called
  zero_copy,  // as before, but `released` may come only after the buffer is gone: the device may use the memory itself
};

class Device {
 public:
  Device(int index, std::string kind) : index_(index), kind_(std::move(kind)) {}
  virtual ~Device() = default;

  int index() const { return index_; }               // position in Backend::devices
  const std::string& kind() const { return kind_; }  // product name, in the backend's words

  // Optional.
  virtual Result<DeviceMemory> memory() = 0;
  // `released` may be empty; if not, it is called exactly once, on failure too.
  virtual Result<BufferPtr> from_host(const void* data, TensorSpec spec, HostData use,
                                      std::function<void()> released) = 0;
  // Optional. A copy of a buffer of another device of the same backend.
  virtual Result<BufferPtr> from_device(Buffer& buffer) = 0;
  // `text`: a StableHLO module with one function @main. `options`: more options in the backend's own encoding, or
  // empty; for PJRT a serialised CompileOptionsProto, whose fields win over the defaults. May block for long.
  virtual Result<ExecutablePtr> compile(std::string_view text, std::string_view options) = 0;
  // Optional. The inverse of Executable::serialize, also in another process.
  virtual Result<ExecutablePtr> load(std::string_view bytes) = 0;

 private:
  int index_;
  std::string kind_;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const std::string& platform() const = 0;  // "cpu", "tpu", "cuda", ...
  virtual const std::string& version() const = 0;   // for people
  // Equal for two backends only if each runs what the other has compiled.
  virtual const std::string& fingerprint() const = 0;
  // The devices that this process may use; never empty.
  virtual std::span<const DevicePtr> devices() const = 0;
};

}  // namespace accel
