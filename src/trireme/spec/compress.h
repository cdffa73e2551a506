// spec/compress.h -- fewer bytes between data-parallel ranks: [compress].
//
//   [compress]                    [compress]
//   kind = "powersgd"             kind = "diloco"
//   rank = 4                      interval = 100
//
// Two families. Compressed gradients: every step all copies exchange less than the gradient, and what was left out is
// added to the next one. Local updates: copies take steps by themselves and bring weights together now and then.
// Values only: parallel/compress/ does it. What does not go together is in rules/compress_rules.cpp.
// Depends on: base (config).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "trireme/base/config.h"

namespace trireme::spec {

enum class CompressKind : std::uint8_t {
  kNone,
  kOnebitSgd,         ///< Seide et al. 2014
  kQsgd,              ///< Alistarh et al. 2017
  kPowerSgd,          ///< Vogels et al. 2019
  kDgc,               ///< deep gradient compression, Lin et al. 2018
  kCsc,               ///< coarse-grained sparse communication, GradientFlow, Sun et al. 2019
  kOnebitAdam,        ///< Tang et al. 2021
  kZeroOneAdam,       ///< Lu et al. 2022
  kLocalSgd,          ///< Stich 2019; post-local: Lin et al. 2020; quadratic synchronisation: Gu et al. 2024
  kElasticAveraging,  ///< EASGD, Zhang et al. 2015
  kDiloco,            ///< Douillard et al. 2023; with fragments, delay and mixing streaming DiLoCo (2025)
};
std::span<const Named<CompressKind>> enum_names(std::type_identity<CompressKind>);

/// Whose gradients are compressed.
enum class CompressAcross : std::uint8_t {
  kRank,  ///< every data-parallel rank's
  kNode,  ///< the sum of a node's ranks, which is dense
};
std::span<const Named<CompressAcross>> enum_names(std::type_identity<CompressAcross>);

enum class QsgdNorm : std::uint8_t { kMax, kL2 };
enum class QsgdCoding : std::uint8_t { kFixed, kElias };
/// Data type in which DiLoCo's pseudo-gradients travel.
enum class DeltaDtype : std::uint8_t { kFp32, kFp16, kInt8 };
std::span<const Named<QsgdNorm>> enum_names(std::type_identity<QsgdNorm>);
std::span<const Named<QsgdCoding>> enum_names(std::type_identity<QsgdCoding>);
std::span<const Named<DeltaDtype>> enum_names(std::type_identity<DeltaDtype>);

/// [compress]
struct CompressConfig {
  CompressKind kind = CompressKind::kNone;
  std::int64_t start = 0;  ///< steps that are dense, or synchronous, before it begins
  std::int64_t min_elements = 10'000;
  CompressAcross across = CompressAcross::kRank;
  bool local_clip = false;
  bool overlap = true;
  // qsgd
  int levels = 7;
  QsgdNorm norm = QsgdNorm::kMax;
  std::int64_t bucket_size = 512;
  QsgdCoding coding = QsgdCoding::kFixed;
  // powersgd
  int rank = 4;
  bool warm_start = true;
  bool alternate = false;
  // dgc, csc
  std::optional<double> momentum;  ///< unset: 0
  double sparsity = 0.999;
  std::int64_t sparsity_warmup = 0;
  bool masking = true;
  double sample = 0.01;
  double density = 0.25;
  std::int64_t chunk = 32'768;
  // onebit-adam, zero-one-adam
  std::optional<std::int64_t> freeze_after;  ///< unset: when the variance is stable
  double freeze_ratio = 0.96;
  int variance_scale = 16;
  std::int64_t local_scale = 16'384;
  int max_local_steps = 16;
  // local updates
  std::optional<std::int64_t> interval;  ///< unset: interval_of()
  std::optional<int> workers;            ///< unset: every data-parallel rank
  double quadratic = 0;
  bool average_moments = false;
  std::optional<double> elastic_rate;  ///< unset: 0.9 / workers
  double outer_learning_rate = 0.7, outer_momentum = 0.9;
  bool outer_nesterov = true;
  DeltaDtype delta_dtype = DeltaDtype::kFp32;
  int fragments = 1;
  std::int64_t delay = 0;
  double mixing = 0;
  bool operator==(const CompressConfig&) const = default;
};

void describe(config::Section<CompressConfig>& section);
std::vector<config::Problem> find_problems(const CompressConfig& compress);

/// "powersgd"
std::string compress_name(CompressKind kind);
/// Copies take steps by themselves, so that their weights differ in between.
bool has_local_updates(CompressKind kind);
/// Whether copies' weights may differ after a step: local updates and 0/1 Adam.
bool lets_copies_drift(CompressKind kind);
/// Steps between synchronisations: as given, or 8 for local-sgd, 10 for elastic-averaging, 500 for diloco.
std::int64_t interval_of(const CompressConfig& compress);
/// Of a recipe that runs only so many steps, such as verify's: what begins late or happens rarely comes at least three
/// times. Says what it changed; empty where nothing.
std::string fit_into_steps(CompressConfig& compress, std::int64_t steps);

}  // namespace trireme::spec
