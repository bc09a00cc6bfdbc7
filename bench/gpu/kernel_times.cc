// A library that CUDA loads into a process which has CUDA_INJECTION64_PATH: writes when each kernel, copy and fill of the
// GPU began and ended to $EPS_KERNEL_TIMES/PID.tsv, by CUPTI's activity records, which cost a step about one percent.
//
// A line each, of fields between tabs: kernel | copy_in | copy_out | copy | fill, begin and end in nanoseconds of one clock,
// the stream, bytes (0: a kernel), and a kernel's name. A line that begins with "#" says what did not work. Where CUPTI is
// not there, or the toolkit that this was built with had none, there is no more than that.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

#if __has_include(<cupti.h>)
#include <cupti.h>
#define EPS_HAS_CUPTI 1
#else
#define EPS_HAS_CUPTI 0
#endif

namespace {

std::FILE* out = nullptr;  // never closed: records come until the process ends

#if EPS_HAS_CUPTI

std::mutex mu;  // of `out`: CUPTI hands buffers over in threads of its own
constexpr size_t kBufferBytes = size_t{4} << 20;

// CUPTI's functions, by their own names.
struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_record = nullptr;
  decltype(&cuptiActivityFlushAll) flush_all = nullptr;
} cupti;

void* OpenCupti() {
  const char* toolkit = std::getenv("CUDA_PATH");
  const std::string root = toolkit == nullptr ? "/usr/local/cuda" : toolkit;
  for (const std::string& folder : {std::string(), root + "/lib64/", root + "/extras/CUPTI/lib64/"}) {
    for (const char* name : {"libcupti.so.13", "libcupti.so"}) {
      if (void* library = dlopen((folder + name).c_str(), RTLD_NOW); library != nullptr) return library;
    }
  }
  return nullptr;
}

template <typename Fn>
bool Find(void* library, const char* name, Fn* found) {
  *found = reinterpret_cast<Fn>(dlsym(library, name));
  return *found != nullptr;
}

bool LoadCupti() {
  void* library = OpenCupti();
  return library != nullptr && Find(library, "cuptiActivityRegisterCallbacks", &cupti.register_callbacks) &&
         Find(library, "cuptiActivityEnable", &cupti.enable) &&
         Find(library, "cuptiActivityGetNextRecord", &cupti.next_record) &&
         Find(library, "cuptiActivityFlushAll", &cupti.flush_all);
}

void Say(const char* kind, uint64_t begin, uint64_t end, uint32_t stream, uint64_t num_bytes, const char* name) {
  std::fprintf(out, "%s\t%llu\t%llu\t%u\t%llu\t%s\n", kind, static_cast<unsigned long long>(begin),
               static_cast<unsigned long long>(end), stream, static_cast<unsigned long long>(num_bytes), name);
}

void Say(const CUpti_Activity* record) {
  if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
    // Later versions of the record begin as this one.
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    Say("kernel", kernel->start, kernel->end, kernel->streamId, 0, kernel->name);
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
    const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy5*>(record);
    const char* kind = copy->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "copy_in"
                       : copy->copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "copy_out"
                                                                           : "copy";
    Say(kind, copy->start, copy->end, copy->streamId, copy->bytes, "");
  } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
    const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
    Say("fill", fill->start, fill->end, fill->streamId, fill->bytes, "");
  }
}

void GiveBuffer(uint8_t** buffer, size_t* num_bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *num_bytes = kBufferBytes;
  *max_records = 0;  // as many as fit
}
void TakeBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid_bytes) {
  const std::lock_guard<std::mutex> lock(mu);
  CUpti_Activity* record = nullptr;
  while (cupti.next_record(buffer, valid_bytes, &record) == CUPTI_SUCCESS) Say(record);
  std::free(buffer);
}
void Finish() {
  cupti.flush_all(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  std::fflush(out);
}

void Begin() {
  if (!LoadCupti()) {
    std::fprintf(out, "# libcupti.so of CUDA 13 cannot be loaded\n");
    return;
  }
  cupti.register_callbacks(&GiveBuffer, &TakeBuffer);
  for (const CUpti_ActivityKind kind :
       {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    const CUptiResult enabled = cupti.enable(kind);
    if (enabled != CUPTI_SUCCESS) std::fprintf(out, "# CUPTI refuses activity %d: error %d\n", kind, enabled);
  }
  std::atexit(&Finish);
}

#else

void Begin() { std::fprintf(out, "# built with a CUDA toolkit that has no CUPTI\n"); }

#endif

}  // namespace

// CUDA's driver calls it when it starts.
extern "C" int InitializeInjection() {
  const char* folder = std::getenv("EPS_KERNEL_TIMES");
  if (folder == nullptr) return 1;
  out = std::fopen((std::string(folder) + "/" + std::to_string(getpid()) + ".tsv").c_str(), "w");
  if (out == nullptr) return 1;
  Begin();
  std::fflush(out);
  return 1;
}
