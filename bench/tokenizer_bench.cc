// How fast texts become tokens. Reads documents (records of a count of 32 bits and so many bytes, little-endian), then
// encodes all of them once for each line of its standard input, a number of threads, and answers each with a line of
// JSON. What measures the other side decides who is next: bench/tokenizer_bench.py.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

std::vector<absl::string_view> Documents(absl::string_view bytes) {
  std::vector<absl::string_view> documents;
  uint32_t count = 0;
  while (bytes.size() >= sizeof(count)) {
    std::memcpy(&count, bytes.data(), sizeof(count));
    documents.push_back(bytes.substr(sizeof(count), count));
    bytes.remove_prefix(sizeof(count) + documents.back().size());
  }
  return documents;
}

// Every document once.
void Round(const Tokenizer& tokenizer, const std::vector<absl::string_view>& documents, int num_threads) {
  std::atomic<size_t> next = 0;
  std::atomic<int64_t> ids = 0;
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int t = 0; t < num_threads; ++t) {
    threads.emplace_back([&] {
      for (size_t i = next++; i < documents.size(); i = next++) {
        ids += static_cast<int64_t>(tokenizer.Encode(documents[i], Tokenizer::Specials::kAsTokens).size());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::cout << nlohmann::json({{"seconds", seconds}, {"ids", ids.load()}}).dump() << std::endl;
}

int Main(const std::string& tokenizer_path, const std::string& documents_path) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = LoadTokenizer(tokenizer_path);
  const absl::StatusOr<std::string> bytes = ReadFile(documents_path);
  for (const absl::Status& status : {tokenizer.status(), bytes.status()}) {
    if (status.ok()) continue;
    std::fprintf(stderr, "tokenizer_bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  const std::vector<absl::string_view> documents = Documents(*bytes);
  int num_threads = 0;
  while (std::cin >> num_threads) Round(**tokenizer, documents, num_threads);
  return 0;
}

}  // namespace
}  // namespace eps

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: tokenizer_bench TOKENIZER DOCUMENTS < numbers of threads\n");
    return 2;
  }
  return eps::Main(argv[1], argv[2]);
}
