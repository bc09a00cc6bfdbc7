#include "common/formats/token_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

// The first byte chooses the width of a token and the vocabulary; the rest is the file. Ids that are read are the
// vocabulary's.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  if (num_bytes == 0) return 0;
  const int widths[] = {1, 2, 4};
  const int token_bytes = widths[data[0] % 3];
  const int64_t vocab = int64_t{1} << (data[0] / 3 % 25);
  const int fd = memfd_create("tokens", MFD_CLOEXEC);
  if (fd < 0 || write(fd, data + 1, num_bytes - 1) != static_cast<ssize_t>(num_bytes - 1)) abort();
  const auto file = eps::TokenFile::Open("/proc/self/fd/" + std::to_string(fd), token_bytes);
  close(fd);
  if (!file.ok()) return 0;
  if ((*file)->num_tokens() * token_bytes != static_cast<int64_t>(num_bytes - 1)) abort();
  std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>((*file)->num_tokens(), 64)));
  if ((*file)->Read((*file)->num_tokens() - static_cast<int64_t>(ids.size()), vocab, absl::MakeSpan(ids)).ok()) {
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab) abort();
    }
  }
  if ((*file)->Read((*file)->num_tokens(), vocab, absl::MakeSpan(ids)).ok() && !ids.empty()) abort();
  return 0;
}
