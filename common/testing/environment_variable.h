#ifndef EPS_COMMON_TESTING_ENVIRONMENT_VARIABLE_H_
#define EPS_COMMON_TESTING_ENVIRONMENT_VARIABLE_H_

#include <cstdlib>
#include <optional>
#include <string>

namespace eps {

// Sets a variable of the environment, or with null unsets it, and has it as it was at the end. While no other thread reads
// or sets any.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    Set(value);
  }
  ~EnvironmentVariable() { Set(before_.has_value() ? before_->c_str() : nullptr); }
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

  void Set(const char* value) { value == nullptr ? unsetenv(name_) : setenv(name_, value, 1); }

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

}  // namespace eps

#endif  // EPS_COMMON_TESTING_ENVIRONMENT_VARIABLE_H_
