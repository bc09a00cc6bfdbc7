#ifndef EPS_COMMON_BASE_MEDIAN_H_
#define EPS_COMMON_BASE_MEDIAN_H_

#include <algorithm>
#include <cstddef>
#include <vector>

namespace eps {

// Of an even number the larger one of the two in the middle, of none T().
template <typename T>
T Median(std::vector<T> values) {
  if (values.empty()) return T();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace eps

#endif  // EPS_COMMON_BASE_MEDIAN_H_
