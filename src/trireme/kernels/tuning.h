// kernels/tuning.h -- which of several ways to compute the same was the fastest here: timed once, written down, used
// again.
//
// Two ways of one GEMM round differently, so a run that timed its kernels anew would not repeat its bits. What was
// chosen therefore goes into a file of plain JSON, which belongs to one card and one version of the library: a file of
// another card is not used, and says why.
// Depends on: base.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace trireme::kernels {

/// How a library computes one GEMM: its own words for it, and what they say to people.
struct GemmPlan {
  std::array<std::uint64_t, 8> words{};
  std::int64_t workspace = 0;  ///< bytes
  std::string described;       ///< "algorithm 66 tile 128x256 stages 36 cluster 4"
  double us = 0;               ///< of one GEMM, when it was chosen
  double favourite_us = 0;     ///< of the plan that the library would have taken
  int tried = 0;
  bool operator==(const GemmPlan&) const = default;
};

/// Which way to reach the same result, such as a bias's gradient within a GEMM or after it.
struct ChosenVariant {
  std::string pick;
  std::map<std::string, double> us;  ///< of each way; those that cannot run, or compute something else, are not there
  bool operator==(const ChosenVariant&) const = default;
};

/// Whom timings hold for.
struct TuningKey {
  std::string card, library;
  bool operator==(const TuningKey&) const = default;
};

class Choices {
 public:
  explicit Choices(TuningKey ground) : ground_(std::move(ground)) {}

  /// Null where nothing is known.
  const GemmPlan* product(const std::string& key) const;
  const ChosenVariant* way(const std::string& key) const;
  /// The first to choose is right: a second choice of the same key changes nothing.
  const GemmPlan& add_product(const std::string& key, GemmPlan plan);
  const ChosenVariant& add_way(const std::string& key, ChosenVariant way);
  /// A plan that no longer runs is forgotten.
  void drop_product(const std::string& key);

  const TuningKey& ground() const { return ground_; }
  std::size_t size() const { return products_.size() + ways_.size(); }
  /// Raised by every addition.
  std::int64_t version() const { return version_; }

  std::string to_json() const;
  /// What a file says is taken over, where nothing is known yet. Empty, or why the file is of no use here (another
  /// card, another library). A ConfigError where it is no such file.
  std::string take_json(std::string_view text, std::string_view source);

 private:
  TuningKey ground_;
  std::map<std::string, GemmPlan> products_;
  std::map<std::string, ChosenVariant> ways_;
  std::int64_t version_ = 0;
};

/// The fastest by name; a way listed first keeps its place unless another is at least `margin` faster: timings that
/// differ by less than their noise must not decide.
std::string pick_way(const std::map<std::string, double>& us, std::string_view plain, double margin = 0.02);

}  // namespace trireme::kernels
