#include "common/base/flags.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"

namespace eps {

CLI::Validator AsByteSize() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const absl::StatusOr<int64_t> num_bytes = ParseByteSize(text);
        if (!num_bytes.ok()) return std::string(num_bytes.status().message());
        if (*num_bytes < 1) return "must be at least 1 byte";
        text = absl::StrCat(*num_bytes);
        return "";
      },
      "", "byte size");
}

CLI::Validator NumberIn(double lowest, double highest) {
  const std::string wanted = absl::StrCat("in [", lowest, " - ", highest, "]");
  return CLI::Validator(
      [=](std::string& text) -> std::string {
        double value = 0;
        if (absl::SimpleAtod(text, &value) && value >= lowest && value <= highest) return "";
        return absl::StrCat("\"", text, "\" is no number ", wanted);
      },
      absl::StrCat("FLOAT ", wanted), "number");
}

CLI::Validator NotEmpty() {
  return CLI::Validator([](std::string& text) -> std::string { return text.empty() ? "must not be empty" : ""; }, "");
}

CLI::Validator EndsIn(std::string ending) {
  return CLI::Validator(
      [ending = std::move(ending)](std::string& text) -> std::string {
        return absl::EndsWith(text, ending) ? "" : absl::StrCat("must end in ", ending, ", which is what is written");
      },
      "");
}

CLI::Validator IsAddress() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text.find("://") != std::string::npos) {  // of a page, as a browser has it
          return absl::StrCat("\"", text, "\": want HOST:PORT, without ", text.substr(0, text.find("://") + 3));
        }
        const size_t colon = text.rfind(':');
        int port = 0;
        if (colon != std::string::npos && colon > 0 && absl::SimpleAtoi(text.substr(colon + 1), &port) && port >= 1 &&
            port <= 65535) {
          return "";
        }
        return absl::StrCat("\"", text, "\": want HOST:PORT with a port in [1, 65535]");
      },
      "", "address");
}

}  // namespace eps
