// Stands in for libFuzzer's main: runs LLVMFuzzerTestOneInput once on nothing and once on each file named, folders walked.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes);

namespace {

int num_inputs = 0;

bool RunFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file) {
    std::fprintf(stderr, "cannot read %s\n", path.c_str());
    return false;
  }
  std::printf("%s (%zu bytes)\n", path.c_str(), bytes.size());
  std::fflush(stdout);  // so that a crash says where
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  ++num_inputs;
  return true;
}

bool RunPath(const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) return RunFile(path);
  bool ok = true;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    if (!entry.is_directory()) ok = RunFile(entry.path()) && ok;
  }
  return ok;
}

}  // namespace

int main(int argc, char** argv) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(""), 0);
  bool ok = true;
  for (int i = 1; i < argc; ++i) ok = RunPath(argv[i]) && ok;
  std::printf("%d files\n", num_inputs);
  return ok ? 0 : 1;
}
