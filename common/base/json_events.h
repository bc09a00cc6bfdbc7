#ifndef EPS_COMMON_BASE_JSON_EVENTS_H_
#define EPS_COMMON_BASE_JSON_EVENTS_H_

#include <cstddef>
#include <string>

#include "nlohmann/json.hpp"

namespace eps {

// What nlohmann::json::sax_parse finds in a text, for readers that keep no values: each overrides what it looks at.
// Nothing that is not overridden ends the reading, but for the text's first error.
class JsonEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }
};

}  // namespace eps

#endif  // EPS_COMMON_BASE_JSON_EVENTS_H_
