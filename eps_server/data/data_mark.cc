#include "eps_server/data/data_mark.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"

namespace eps::server {
namespace {

constexpr int64_t kPieceBytes = int64_t{64} << 10;
constexpr int64_t kPieces = 64;
constexpr int64_t kAlignBytes = 4096;

}  // namespace

absl::StatusOr<DataMark> MarkDataFile(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(path, O_RDONLY));
  struct stat about {};
  if (fstat(file.get(), &about) != 0) return FileError(errno, "look at", path);
  const int64_t num_bytes = about.st_size;
  const int64_t last = num_bytes - kPieceBytes;  // where the last piece begins
  Sha256 sum;
  std::vector<std::byte> piece(static_cast<size_t>(kPieceBytes));
  int64_t end = 0;  // of what was read
  for (int64_t i = 0; i < kPieces && end < num_bytes; ++i) {
    int64_t begin = i * kPieceBytes;
    if (last > (kPieces - 1) * kPieceBytes) {
      // In two steps: the product of a large file's size and 63 may not fit.
      begin = last / (kPieces - 1) * i + last % (kPieces - 1) * i / (kPieces - 1);
      if (i < kPieces - 1) begin = begin / kAlignBytes * kAlignBytes;
    }
    const int64_t wanted = std::min(kPieceBytes, num_bytes - begin);
    int64_t got = 0;
    while (got < wanted) {
      const ssize_t n = pread(file.get(), piece.data() + got, static_cast<size_t>(wanted - got), begin + got);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return FileError(errno, "read", path);
      if (n == 0) break;  // cut short meanwhile: another file, then
      got += n;
    }
    sum.Update(absl::MakeConstSpan(piece).subspan(0, static_cast<size_t>(got)));
    end = begin + wanted;
  }
  return DataMark{.num_bytes = num_bytes, .sha256 = sum.FinishHex()};
}

absl::StatusOr<DataMark> MarkDataFiles(const std::vector<std::string>& paths) {
  if (paths.size() == 1) return MarkDataFile(paths.front());
  DataMark all;
  Sha256 sum;
  for (const std::string& path : paths) {
    EPS_ASSIGN_OR_RETURN(const DataMark mark, MarkDataFile(path));
    all.num_bytes += mark.num_bytes;
    sum.Update(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(mark.sha256.data()), mark.sha256.size()));
  }
  all.sha256 = sum.FinishHex();
  return all;
}

}  // namespace eps::server
