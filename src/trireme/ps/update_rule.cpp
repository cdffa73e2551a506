#include "trireme/ps/update_rule.h"

#include <cmath>

namespace trireme::ps {
namespace {

/// Calls body with the type of the values.
template <typename Body>
void with_type(ValueType type, const Body& body) {
  if (type == ValueType::kF32) {
    body(float{});
  } else {
    body(double{});
  }
}

template <typename T>
const T* pushed_at(std::span<const std::byte* const> pushed, std::size_t plane) {
  return reinterpret_cast<const T*>(pushed[plane]);
}

class SgdRule final : public UpdateRule {
 public:
  void apply(const Planes& planes, const Segment& keys, std::span<const std::byte* const> pushed,
             double rate) const override {
    with_type(planes.type, [&]<typename T>(T) {
      T* weight = planes.at<T>(0, keys.begin);
      const T* gradient = pushed_at<T>(pushed, 0);
      const T step = static_cast<T>(rate);
      for (std::uint64_t i = 0; i < keys.size(); ++i) weight[i] -= step * gradient[i];
    });
  }
};

class SumRule final : public UpdateRule {
 public:
  void apply(const Planes& planes, const Segment& keys, std::span<const std::byte* const> pushed,
             double) const override {
    with_type(planes.type, [&]<typename T>(T) {
      T* weight = planes.at<T>(0, keys.begin);
      const T* added = pushed_at<T>(pushed, 0);
      for (std::uint64_t i = 0; i < keys.size(); ++i) weight[i] += added[i];
    });
  }
};

class AdagradRule final : public UpdateRule {
 public:
  explicit AdagradRule(double epsilon) : epsilon_(epsilon) {}
  int state_planes() const override { return 1; }
  void apply(const Planes& planes, const Segment& keys, std::span<const std::byte* const> pushed,
             double rate) const override {
    with_type(planes.type, [&]<typename T>(T) {
      T *weight = planes.at<T>(0, keys.begin), *sum = planes.at<T>(1, keys.begin);
      const T* gradient = pushed_at<T>(pushed, 0);
      const T step = static_cast<T>(rate), epsilon = static_cast<T>(epsilon_);
      for (std::uint64_t i = 0; i < keys.size(); ++i) {
        sum[i] += gradient[i] * gradient[i];
        weight[i] -= step * gradient[i] / (std::sqrt(sum[i]) + epsilon);
      }
    });
  }

 private:
  double epsilon_;
};

class ProximalRule final : public UpdateRule {
 public:
  explicit ProximalRule(double lambda) : lambda_(lambda) {}
  int state_planes() const override { return 1; }
  int push_planes() const override { return 2; }
  void apply(const Planes& planes, const Segment& keys, std::span<const std::byte* const> pushed,
             double) const override {
    with_type(planes.type, [&]<typename T>(T) {
      T *weight = planes.at<T>(0, keys.begin), *kept = planes.at<T>(1, keys.begin);
      const T *gradient = pushed_at<T>(pushed, 0), *bound = pushed_at<T>(pushed, 1);
      for (std::uint64_t i = 0; i < keys.size(); ++i) {
        kept[i] = gradient[i];
        if (!(bound[i] > 0)) continue;
        const double curvature = static_cast<double>(bound[i]);
        weight[i] = static_cast<T>(soft_threshold(
            static_cast<double>(weight[i]) - static_cast<double>(gradient[i]) / curvature, lambda_ / curvature));
      }
    });
  }

 private:
  double lambda_;
};

}  // namespace

double soft_threshold(double x, double threshold) {
  if (x > threshold) return x - threshold;
  if (x < -threshold) return x + threshold;
  return 0;
}

std::unique_ptr<UpdateRule> make_sgd_rule() { return std::make_unique<SgdRule>(); }
std::unique_ptr<UpdateRule> make_sum_rule() { return std::make_unique<SumRule>(); }
std::unique_ptr<UpdateRule> make_adagrad_rule(double epsilon) { return std::make_unique<AdagradRule>(epsilon); }
std::unique_ptr<UpdateRule> make_proximal_rule(double lambda) { return std::make_unique<ProximalRule>(lambda); }

}  // namespace trireme::ps
