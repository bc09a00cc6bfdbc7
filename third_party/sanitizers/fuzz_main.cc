// Stands in for libFuzzer's main: runs LLVMFuzzerTestOneInput on nothing, on each file named, folders walked, and then on
// --mutations=N inputs that these are changed into, the same ones each time.
//
// Each of those lies in $TEST_UNDECLARED_OUTPUTS_DIR/mutated, or in mutated here, while it runs, so that one that crashes or
// hangs is left there.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes);

namespace {

constexpr std::string_view kMutations = "--mutations=";
constexpr int kMaxChangesAtOnce = 4;

using Bytes = std::vector<uint8_t>;
using Random = std::mt19937_64;

// Where the input that runs lies.
class InputFile {
 public:
  InputFile() {
    const char* folder = std::getenv("TEST_UNDECLARED_OUTPUTS_DIR");
    path_ = std::string(folder == nullptr ? "." : folder) + "/mutated";
    file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file_ < 0) Fail();
  }
  ~InputFile() {
    close(file_);
    unlink(path_.c_str());
  }
  InputFile(const InputFile&) = delete;

  void Write(const Bytes& input) const {
    const bool written = pwrite(file_, input.data(), input.size(), 0) == static_cast<ssize_t>(input.size());
    if (!written || ftruncate(file_, static_cast<off_t>(input.size())) != 0) Fail();
  }

 private:
  [[noreturn]] void Fail() const {
    std::fprintf(stderr, "cannot write %s: %s\n", path_.c_str(), std::strerror(errno));
    std::exit(1);
  }

  std::string path_;
  int file_ = -1;
};

// In a block of just its size, so that AddressSanitizer sees a byte read behind it.
void RunOn(const Bytes& input) {
  static constexpr uint8_t kNothing = 0;
  const Bytes exact(input);
  LLVMFuzzerTestOneInput(exact.empty() ? &kNothing : exact.data(), exact.size());
}

// Of the file, or of all in the folder, in the order of their names.
std::vector<std::filesystem::path> FilesOf(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (!entry.is_directory()) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// In [0, end); end > 0.
size_t Below(size_t end, Random& random) { return static_cast<size_t>(random() % end); }

// What lengths, counts and offsets are wrong by.
void OverwriteNumber(Bytes& input, Random& random) {
  constexpr uint64_t kNumbers[] = {0,          1,          0x7F,       0x80,       0xFF,       0x7FFF,     0xFFFF,
                                   0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1ULL << 62, ~0ULL >> 1, 1ULL << 63, ~0ULL};
  const uint64_t number = kNumbers[Below(std::size(kNumbers), random)];
  const size_t at = Below(input.size(), random), bytes = std::min(input.size() - at, size_t{1} << Below(4, random));
  std::memcpy(&input[at], &number, bytes);  // little-endian, as all of ours are
}

// `input` with some bytes changed, left out, moved, doubled, or put in from `other`.
void Change(Bytes& input, const Bytes& other, Random& random) {
  if (input.empty()) {
    input = other;
    return;
  }
  const size_t at = Below(input.size(), random), length = 1 + Below(std::min<size_t>(input.size() - at, 64), random);
  const auto begin = input.begin() + static_cast<std::ptrdiff_t>(at), end = begin + static_cast<std::ptrdiff_t>(length);
  switch (random() % 8) {
    case 0:
      input[at] ^= static_cast<uint8_t>(1U << (random() % 8));
      break;
    case 1:
      input[at] = static_cast<uint8_t>(random());
      break;
    case 2:
      OverwriteNumber(input, random);
      break;
    case 3:
      input.erase(begin, end);
      break;
    case 4:
      input.resize(at);
      break;
    case 5: {
      const Bytes twice(begin, end);
      input.insert(begin, twice.begin(), twice.end());
      break;
    }
    case 6:
      std::rotate(begin, input.begin() + static_cast<std::ptrdiff_t>(at + length / 2), end);
      break;
    default: {
      if (other.empty()) break;
      const size_t from = Below(other.size(), random),
                   count = 1 + Below(std::min<size_t>(other.size() - from, 64), random);
      input.insert(begin, other.begin() + static_cast<std::ptrdiff_t>(from),
                   other.begin() + static_cast<std::ptrdiff_t>(from + count));
    }
  }
}

void RunMutated(const std::vector<Bytes>& seeds, int count) {
  const InputFile file;
  Random random(1);  // the same inputs each time
  for (int i = 0; i < count; ++i) {
    Bytes input = seeds[static_cast<size_t>(i) % seeds.size()];
    for (size_t changes = 1 + Below(kMaxChangesAtOnce, random); changes > 0; --changes) {
      Change(input, seeds[Below(seeds.size(), random)], random);
    }
    file.Write(input);
    RunOn(input);
  }
}

}  // namespace

int main(int argc, char** argv) {
  int mutations = 0;
  std::vector<Bytes> seeds;
  RunOn({});
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    if (arg.substr(0, kMutations.size()) == kMutations) {
      const char* end = arg.data() + arg.size();
      const auto [read_to, error] = std::from_chars(arg.data() + kMutations.size(), end, mutations);
      if (error != std::errc() || read_to != end || mutations < 0) {
        std::fprintf(stderr, "%s: is no number\n", argv[i]);
        return 1;
      }
      continue;
    }
    for (const std::filesystem::path& path : FilesOf(arg)) {
      std::ifstream file(path, std::ios::binary);
      seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      if (!file) {
        std::fprintf(stderr, "cannot read %s\n", path.c_str());
        return 1;
      }
      std::printf("%s (%zu bytes)\n", path.c_str(), seeds.back().size());
      std::fflush(stdout);  // so that a crash says where
      RunOn(seeds.back());
    }
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "no seeds\n");
    return 1;
  }
  RunMutated(seeds, mutations);
  std::printf("%zu files, and %d inputs that they were changed into\n", seeds.size(), mutations);
  return 0;
}
