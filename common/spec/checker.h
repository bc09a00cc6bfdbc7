#ifndef EPS_COMMON_SPEC_CHECKER_H_
#define EPS_COMMON_SPEC_CHECKER_H_

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace eps {

// The value of an optional proto field, or nullopt.
#define EPS_FIELD(message, name) ((message).has_##name() ? std::make_optional((message).name()) : std::nullopt)

// Of `steps`, and of whatever counts some of them.
inline constexpr int64_t kMaxSteps = 1'000'000'000'000;

// Whether it is positive and normal in fp32, in which the optimizer computes: denormals are zero there.
inline bool IsNormalFloat(double value) {
  return value >= std::numeric_limits<float>::min() && value <= std::numeric_limits<float>::max();
}

// Checks one value after the other and keeps the first error. An absent field's default is checked too: 0 where the field
// is required, which is then "missing".
class Checker {
 public:
  const absl::Status& status() const { return status_; }

  void Fail(absl::string_view field, absl::string_view what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(field, ": ", what));
  }

  // What another has found, which names the field.
  void Take(const absl::Status& status) { status_.Update(status); }

  template <typename T>
  T Integer(absl::string_view field, std::optional<T> given, T absent, int64_t min, int64_t max) {
    const T value = given.value_or(absent);
    if (value < min) Fail(field, absl::StrCat(Shown(given), ", must be at least ", min));
    if (value > max) Fail(field, absl::StrCat(value, ", must be at most ", max));
    return value;
  }

  // All comparisons fail for NaN.
  double Positive(absl::string_view field, std::optional<double> given, double absent) {
    const double value = given.value_or(absent);
    if (!IsNormalFloat(value))
      Fail(field, absl::StrCat(Shown(given), ", must be greater than 0, and a normal number in fp32"));
    return value;
  }
  double NotNegative(absl::string_view field, std::optional<double> given, double absent) {
    const double value = given.value_or(absent);
    if (!(value >= 0 && value <= kMaxFloat))
      Fail(field, absl::StrCat(value, ", must be at least 0 and finite in fp32"));
    return value;
  }
  double BelowOne(absl::string_view field, std::optional<double> given, double absent) {
    const double value = given.value_or(absent);
    if (!(value >= 0 && value < 1)) Fail(field, absl::StrCat(value, ", must be at least 0 and less than 1"));
    return value;
  }

 private:
  template <typename T>
  static std::string Shown(std::optional<T> given) {
    return given.has_value() ? absl::StrCat(*given) : "missing";
  }

  static constexpr double kMaxFloat = std::numeric_limits<float>::max();
  absl::Status status_;
};

// A field's name, and whether the RunSpec has it.
struct GivenField {
  absl::string_view name;
  bool given;
};

// The first that is given; "" if none is.
inline absl::string_view FirstGiven(std::initializer_list<GivenField> fields) {
  for (const GivenField& field : fields) {
    if (field.given) return field.name;
  }
  return "";
}

}  // namespace eps

#endif  // EPS_COMMON_SPEC_CHECKER_H_
