#ifndef EPS_GPU_WORKER_DEVICE_CUDA_LAUNCH_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_LAUNCH_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace eps::worker::cuda {

struct LaunchShape {
  int64_t blocks_x = 1;  // [1, 2^31)
  int64_t blocks_y = 1;  // [1, 65535]
  int threads = 256;     // of a block; a multiple of 32, at most 1024
  int shared_bytes = 0;  // dynamic shared memory of a block; at most kMaxSharedBytes

  friend bool operator==(const LaunchShape&, const LaunchShape&) = default;
};

// What a block may ask for on every GPU that is built for: 99 KiB, the least of sm_80 to sm_120, of which 2 KiB are for
// the kernel's static shared memory.
inline constexpr int kMaxSharedBytes = 97 * 1024;
inline constexpr int64_t kMaxBlocksX = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMaxBlocksY = 65535;

// Made by MakeCall alone.
struct KernelCall {
  const char* name = "";  // in errors
  LaunchShape shape;
  const void* function = nullptr;  // as cudaLaunchKernel takes it
  std::vector<void*> arguments;    // one for each parameter, into what `owner` keeps
  std::shared_ptr<void> owner;
  // Whether the arguments of two calls of `function`, by their owners, are equal; of equal ones the hashes are.
  bool (*same_arguments)(const void*, const void*) = nullptr;
  size_t hash = 0;
  // The same call for one thread of the grid, where kernels are compiled for the processor; empty on a GPU.
  std::function<void()> body;

  // Does the same, on the same memory. (0 and -0 are equal: no kernel is called with a negative zero.)
  friend bool operator==(const KernelCall& a, const KernelCall& b) {
    return a.function == b.function && a.shape == b.shape && a.same_arguments(a.owner.get(), b.owner.get());
  }
};

// What our own kernels are launched into, in order: the compute stream.
//
// Errors:  a launch that fails becomes the stream's error; whoever launches does not see it
// Threads: one at a time
class KernelQueue {
 public:
  virtual ~KernelQueue() = default;
  virtual void Launch(KernelCall call) = 0;
};

inline size_t MixHash(size_t hash, size_t next) { return (hash ^ next) * 0x9E3779B97F4A7C15u + (hash >> 32); }

// A struct is hashed by its bytes, or by what FieldsOf(struct) ties where those have padding or floating point in them.
template <typename... Params>
size_t HashOfArguments(const Params&... args);

template <typename T>
size_t HashOfArgument(const T& argument) {
  if constexpr (std::is_scalar_v<T>) {
    return std::hash<T>()(argument);
  } else if constexpr (std::has_unique_object_representations_v<T>) {
    return std::hash<std::string_view>()(std::string_view(reinterpret_cast<const char*>(&argument), sizeof(T)));
  } else {
    return std::apply([](const auto&... fields) { return HashOfArguments(fields...); }, FieldsOf(argument));
  }
}

template <typename... Params>
size_t HashOfArguments(const Params&... args) {
  size_t hash = sizeof...(Params);
  ((hash = MixHash(hash, HashOfArgument(args))), ...);
  return hash;
}

// kernel(args...) over the grid, whose shape is within bounds. Parameters are numbers, addresses, and structs of them with a
// defaulted operator==.
template <typename... Params>
KernelCall MakeCall(const char* name, const LaunchShape& shape, void (*kernel)(Params...),
                    std::type_identity_t<Params>... args) {
  static_assert((std::equality_comparable<Params> && ...), "calls are compared: a struct wants a defaulted operator==");
  using Arguments = std::tuple<Params...>;
  const auto owned = std::make_shared<Arguments>(args...);
  KernelCall call;
  call.name = name;
  call.shape = shape;
  call.function = reinterpret_cast<const void*>(kernel);
  call.arguments = std::apply([](auto&... each) { return std::vector<void*>{static_cast<void*>(&each)...}; }, *owned);
  call.owner = owned;
  call.same_arguments = [](const void* a, const void* b) {
    return *static_cast<const Arguments*>(a) == *static_cast<const Arguments*>(b);
  };
  call.hash = HashOfArguments(args...);
#ifndef __CUDACC__
  call.body = [kernel, owned] { std::apply(kernel, *owned); };
#endif
  return call;
}

// Enqueues it. A grid without blocks is left out.
template <typename... Params>
void Launch(KernelQueue& queue, const char* name, const LaunchShape& shape, void (*kernel)(Params...),
            std::type_identity_t<Params>... args) {
  if (shape.blocks_x == 0 || shape.blocks_y == 0) return;
  queue.Launch(MakeCall(name, shape, kernel, args...));
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_LAUNCH_H_
