#ifndef EPS_SERVER_STEP_LOSS_CURVE_H_
#define EPS_SERVER_STEP_LOSS_CURVE_H_

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace eps::server {

// The losses of a run in at most kMaxPoints numbers, however long it is: each is the mean over as many steps as the
// others, and neighbours are joined when there are too many.
//
// Threads: none of its own; the owner guards it
class LossCurve {
 public:
  static constexpr size_t kMaxPoints = 128;

  // Of the next step. One that is not finite is left out of its mean.
  void Add(double loss) {
    if (points_.empty() || points_.back().steps == steps_per_point_) {
      if (points_.size() == kMaxPoints) Join();
      points_.push_back({});
    }
    Point& point = points_.back();
    ++point.steps;
    if (!std::isfinite(loss)) return;
    point.sum += loss;
    ++point.finite;
  }

  int64_t steps_per_point() const { return steps_per_point_; }
  // The last one may be of fewer steps. A point without a finite loss is NaN.
  std::vector<double> Points() const {
    std::vector<double> means;
    for (const Point& point : points_) means.push_back(point.sum / static_cast<double>(point.finite));
    return means;
  }

 private:
  struct Point {
    double sum = 0;
    int64_t finite = 0;
    int64_t steps = 0;
  };

  void Join() {
    for (size_t i = 0; i < points_.size() / 2; ++i) {
      const Point a = points_[2 * i], b = points_[2 * i + 1];
      points_[i] = {a.sum + b.sum, a.finite + b.finite, a.steps + b.steps};
    }
    points_.resize(points_.size() / 2);
    steps_per_point_ *= 2;
  }

  std::vector<Point> points_;
  int64_t steps_per_point_ = 1;
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_LOSS_CURVE_H_
