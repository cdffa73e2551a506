#include "trireme/spec/compress.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>

namespace trireme::spec {
namespace {

constexpr Named<CompressKind> kCompressKinds[] = {
    {"none", CompressKind::kNone},
    {"onebit-sgd", CompressKind::kOnebitSgd},
    {"qsgd", CompressKind::kQsgd},
    {"powersgd", CompressKind::kPowerSgd},
    {"dgc", CompressKind::kDgc},
    {"csc", CompressKind::kCsc},
    {"onebit-adam", CompressKind::kOnebitAdam},
    {"zero-one-adam", CompressKind::kZeroOneAdam},
    {"local-sgd", CompressKind::kLocalSgd},
    {"elastic-averaging", CompressKind::kElasticAveraging},
    {"diloco", CompressKind::kDiloco},
};
constexpr Named<CompressAcross> kAcross[] = {{"rank", CompressAcross::kRank}, {"node", CompressAcross::kNode}};
constexpr Named<QsgdNorm> kQsgdNorms[] = {{"max", QsgdNorm::kMax}, {"l2", QsgdNorm::kL2}};
constexpr Named<QsgdCoding> kQsgdCodings[] = {{"fixed", QsgdCoding::kFixed}, {"elias", QsgdCoding::kElias}};
constexpr Named<DeltaDtype> kDeltaDtypes[] = {
    {"fp32", DeltaDtype::kFp32}, {"fp16", DeltaDtype::kFp16}, {"int8", DeltaDtype::kInt8}};

using Kinds = std::initializer_list<CompressKind>;
using enum CompressKind;

/// A key that only some kinds read.
struct KeyUse {
  const char* key;
  bool (*given)(const CompressConfig& compress);
  Kinds kinds;
};

template <auto Member>
bool differs(const CompressConfig& compress) {
  static const CompressConfig defaults;
  return compress.*Member != defaults.*Member;
}

const KeyUse kUses[] = {
    {"min_elements",
     differs<&CompressConfig::min_elements>,
     {kOnebitSgd, kQsgd, kPowerSgd, kDgc, kCsc, kOnebitAdam, kZeroOneAdam}},
    {"across", differs<&CompressConfig::across>, {kOnebitSgd, kQsgd, kPowerSgd, kDgc, kCsc}},
    {"local_clip", differs<&CompressConfig::local_clip>, {kOnebitSgd, kQsgd, kPowerSgd, kDgc, kCsc, kOnebitAdam}},
    {"overlap", differs<&CompressConfig::overlap>, {kOnebitSgd, kQsgd, kPowerSgd, kDgc, kOnebitAdam}},
    {"levels", differs<&CompressConfig::levels>, {kQsgd}},
    {"norm", differs<&CompressConfig::norm>, {kQsgd}},
    {"bucket_size", differs<&CompressConfig::bucket_size>, {kQsgd}},
    {"coding", differs<&CompressConfig::coding>, {kQsgd}},
    {"rank", differs<&CompressConfig::rank>, {kPowerSgd}},
    {"warm_start", differs<&CompressConfig::warm_start>, {kPowerSgd}},
    {"alternate", differs<&CompressConfig::alternate>, {kPowerSgd}},
    {"momentum", differs<&CompressConfig::momentum>, {kDgc, kCsc}},
    {"sparsity", differs<&CompressConfig::sparsity>, {kDgc}},
    {"sparsity_warmup", differs<&CompressConfig::sparsity_warmup>, {kDgc}},
    {"masking", differs<&CompressConfig::masking>, {kDgc, kCsc}},
    {"sample", differs<&CompressConfig::sample>, {kDgc}},
    {"density", differs<&CompressConfig::density>, {kCsc}},
    {"chunk", differs<&CompressConfig::chunk>, {kCsc}},
    {"freeze_after", differs<&CompressConfig::freeze_after>, {kOnebitAdam, kZeroOneAdam}},
    {"freeze_ratio", differs<&CompressConfig::freeze_ratio>, {kOnebitAdam}},
    {"variance_scale", differs<&CompressConfig::variance_scale>, {kZeroOneAdam}},
    {"local_scale", differs<&CompressConfig::local_scale>, {kZeroOneAdam}},
    {"max_local_steps", differs<&CompressConfig::max_local_steps>, {kZeroOneAdam}},
    {"interval", differs<&CompressConfig::interval>, {kLocalSgd, kElasticAveraging, kDiloco}},
    {"workers", differs<&CompressConfig::workers>, {kLocalSgd, kElasticAveraging, kDiloco}},
    {"quadratic", differs<&CompressConfig::quadratic>, {kLocalSgd}},
    {"average_moments", differs<&CompressConfig::average_moments>, {kLocalSgd}},
    {"elastic_rate", differs<&CompressConfig::elastic_rate>, {kElasticAveraging}},
    {"outer_learning_rate", differs<&CompressConfig::outer_learning_rate>, {kDiloco}},
    {"outer_momentum", differs<&CompressConfig::outer_momentum>, {kDiloco}},
    {"outer_nesterov", differs<&CompressConfig::outer_nesterov>, {kDiloco}},
    {"delta_dtype", differs<&CompressConfig::delta_dtype>, {kDiloco}},
    {"fragments", differs<&CompressConfig::fragments>, {kDiloco}},
    {"delay", differs<&CompressConfig::delay>, {kDiloco}},
    {"mixing", differs<&CompressConfig::mixing>, {kDiloco}},
};

void refuse_unused(const CompressConfig& compress, std::vector<config::Problem>& problems) {
  for (const KeyUse& use : kUses) {
    if (!use.given(compress) || std::ranges::find(use.kinds, compress.kind) != use.kinds.end()) continue;
    problems.push_back(
        {.key = fmt::format("compress.{}", use.key),
         .reason = fmt::format("is given, but compress.kind = \"{}\" does not use it", compress_name(compress.kind)),
         .hint = fmt::format("leave it out, or set compress.kind = \"{}\"", compress_name(*use.kinds.begin()))});
  }
  if (compress.kind == kNone && compress.start != 0) {
    problems.push_back({.key = "compress.start",
                        .reason = "is given, but compress.kind = \"none\" does not use it",
                        .hint = "leave it out, or set compress.kind = \"powersgd\""});
  }
}

}  // namespace

std::span<const Named<CompressKind>> enum_names(std::type_identity<CompressKind>) { return kCompressKinds; }
std::span<const Named<CompressAcross>> enum_names(std::type_identity<CompressAcross>) { return kAcross; }
std::span<const Named<QsgdNorm>> enum_names(std::type_identity<QsgdNorm>) { return kQsgdNorms; }
std::span<const Named<QsgdCoding>> enum_names(std::type_identity<QsgdCoding>) { return kQsgdCodings; }
std::span<const Named<DeltaDtype>> enum_names(std::type_identity<DeltaDtype>) { return kDeltaDtypes; }

void describe(config::Section<CompressConfig>& section) {
  section.meaning("gradient compression and local updates: fewer bytes between data-parallel ranks");
  section.field("kind", &CompressConfig::kind,
                "compressed gradients: onebit-sgd, qsgd, powersgd, dgc, csc (GradientFlow); compressed momentum: "
                "onebit-adam, zero-one-adam; local updates: local-sgd, elastic-averaging, diloco; none: dense");
  section
      .field("start", &CompressConfig::start,
             "steps that are dense before compression begins; local updates: steps that are synchronous before copies "
             "go by themselves (post-local SGD)")
      .unit(Unit::kCount)
      .at_least(0);
  section
      .field("min_elements", &CompressConfig::min_elements,
             "parameters with fewer elements, and all vectors, are reduced dense")
      .unit(Unit::kCount)
      .at_least(0);
  section.field("across", &CompressConfig::across,
                "whose gradients are compressed: each data-parallel rank's, or the dense sum over the ranks of a node "
                "(comm.ranks_per_node)");
  section.field("local_clip", &CompressConfig::local_clip,
                "clip each copy's gradient to optim.grad_clip_norm / sqrt(copies) before compression (DGC, section "
                "3.2); the momentum that onebit-adam exchanges is clipped in no other way");
  section.field("overlap", &CompressConfig::overlap,
                "a bucket (layout.bucket_mb) is compressed and exchanged from when its gradients are there, beside "
                "backward; false: after it; on GPUs and with local_clip all is exchanged at once, after backward");
  section
      .field("levels", &CompressConfig::levels,
             "qsgd: quantisation levels above zero; fixed coding takes ceil(log2(2 levels + 1)) bits an element")
      .range(1, 32'767);
  section.field("norm", &CompressConfig::norm,
                "qsgd: what a bucket's levels are relative to: its largest absolute value, or its L2 norm (the paper's "
                "theory)");
  section.field("bucket_size", &CompressConfig::bucket_size, "qsgd: consecutive elements with one scale")
      .unit(Unit::kCount)
      .range(1, 1 << 24);
  section.field("coding", &CompressConfig::coding,
                "qsgd: fixed: as many bits for every element; elias: Elias omega codes of gaps and levels");
  section.field("rank", &CompressConfig::rank, "powersgd: rank of the approximation").range(1, 4096);
  section.field("warm_start", &CompressConfig::warm_start,
                "powersgd: begin each power iteration with the last step's right factor; false: with a random one");
  section.field("alternate", &CompressConfig::alternate,
                "powersgd: exchange one factor a step, left and right in turn: half the bytes");
  section
      .field(
          "momentum", &CompressConfig::momentum,
          "dgc, csc: momentum that is kept by each copy before its gradient is made sparse (momentum correction), in "
          "place of optim.momentum; unset: 0")
      .range(0, 0.999999);
  section.field("sparsity", &CompressConfig::sparsity, "dgc: part of the elements that is not sent").range(0, 0.999999);
  section
      .field("sparsity_warmup", &CompressConfig::sparsity_warmup,
             "dgc: steps over which the sparsity rises: 75, 93.75, 98.4375 and 99.6 % for a quarter of them each")
      .unit(Unit::kCount)
      .at_least(0);
  section.field("masking", &CompressConfig::masking,
                "dgc, csc: momentum factor masking: momentum is cleared where an element was sent");
  section
      .field("sample", &CompressConfig::sample,
             "dgc: part of the elements that the first guess of the threshold is made from; the choice is exact")
      .range(0.0001, 1);
  section.field("density", &CompressConfig::density, "csc: part of the chunks that is sent").range(0.000001, 1);
  section.field("chunk", &CompressConfig::chunk, "csc: elements of a chunk").unit(Unit::kCount).range(1, 1 << 30);
  section
      .field("freeze_after", &CompressConfig::freeze_after,
             "onebit-adam: steps of plain Adam, after which the variance is frozen and the momentum compressed; unset: "
             "when the variance is stable (freeze_ratio). zero-one-adam: steps after which the variance is never "
             "updated again; unset: never frozen")
      .unit(Unit::kCount)
      .at_least(1);
  section
      .field("freeze_ratio", &CompressConfig::freeze_ratio,
             "onebit-adam: the variance is stable when, of its L1 norms now and 1 / (1 - beta2) steps before, the "
             "smaller is at least this part of the larger, and the learning rate's warm-up is over")
      .range(0.5, 0.999999);
  section
      .field("variance_scale", &CompressConfig::variance_scale,
             "zero-one-adam: variance updates after which the interval between them doubles (kappa)")
      .range(1, 1'000'000);
  section
      .field("local_scale", &CompressConfig::local_scale,
             "zero-one-adam: steps after which the interval between 1-bit rounds doubles")
      .unit(Unit::kCount)
      .at_least(1);
  section
      .field("max_local_steps", &CompressConfig::max_local_steps,
             "zero-one-adam: the longest interval between 1-bit rounds, in steps")
      .range(1, 4096);
  section
      .field("interval", &CompressConfig::interval,
             "local updates: steps between synchronisations (H); unset: 8 for local-sgd, 10 for elastic-averaging, 500 "
             "for diloco")
      .unit(Unit::kCount)
      .at_least(1);
  section
      .field("workers", &CompressConfig::workers,
             "local updates: groups of data-parallel ranks that each train one copy, synchronous inside; unset: every "
             "data-parallel rank is one")
      .range(1, 1 << 20);
  section
      .field(
          "quadratic", &CompressConfig::quadratic,
          "local-sgd: quadratic synchronisation rule: the interval is at least (quadratic / learning rate)^2; 0: off")
      .at_least(0);
  section.field("average_moments", &CompressConfig::average_moments,
                "local-sgd: the optimizer's moments are averaged with the weights; false: they stay local");
  section
      .field("elastic_rate", &CompressConfig::elastic_rate,
             "elastic-averaging: how far a copy and the centre move towards each other (alpha); unset: 0.9 / workers")
      .range(0, 1);
  section.field("outer_learning_rate", &CompressConfig::outer_learning_rate, "diloco: learning rate of the outer SGD")
      .at_least(0);
  section.field("outer_momentum", &CompressConfig::outer_momentum, "diloco: momentum of the outer SGD")
      .range(0, 0.999999);
  section.field("outer_nesterov", &CompressConfig::outer_nesterov, "diloco: Nesterov momentum in the outer SGD");
  section.field(
      "delta_dtype", &CompressConfig::delta_dtype,
      "diloco: data type in which pseudo-gradients travel; what fp16 and int8 round off is added to the next");
  section
      .field(
          "fragments", &CompressConfig::fragments,
          "diloco: fragments of layers that are synchronised in turn, each every `interval` steps (streaming DiLoCo)")
      .range(1, 4096);
  section
      .field("delay", &CompressConfig::delay,
             "diloco: steps from sending a pseudo-gradient to applying the result, which overlap with it (tau)")
      .unit(Unit::kCount)
      .at_least(0);
  section
      .field(
          "mixing", &CompressConfig::mixing,
          "diloco: part of the local weights that stays when a result is applied (alpha); streaming DiLoCo takes 0.5")
      .range(0, 1);
}

std::vector<config::Problem> find_problems(const CompressConfig& compress) {
  std::vector<config::Problem> problems;
  refuse_unused(compress, problems);
  if (compress.kind != CompressKind::kDiloco) return problems;
  const std::int64_t interval = interval_of(compress), fragments = compress.fragments;
  if (interval % fragments != 0) {
    problems.push_back(
        {.key = "compress.fragments",
         .reason =
             fmt::format("is {}, which does not divide the interval of {} steps: fragments are sent evenly spread",
                         fragments, interval),
         .hint = fmt::format("set compress.interval = {}", (interval + fragments - 1) / fragments * fragments)});
  } else if (compress.delay >= interval) {
    problems.push_back({.key = "compress.delay",
                        .reason = fmt::format("is {}, but a fragment is sent again after compress.interval = {} steps",
                                              compress.delay, interval),
                        .hint = fmt::format("set compress.delay = {}", interval - 1)});
  }
  if (compress.outer_nesterov && compress.outer_momentum == 0) {
    problems.push_back({.key = "compress.outer_nesterov",
                        .reason = "looks ahead along the momentum, but compress.outer_momentum = 0",
                        .hint = "set compress.outer_nesterov = false"});
  }
  return problems;
}

std::string compress_name(CompressKind kind) { return std::string(name_in<CompressKind>(kCompressKinds, kind)); }

bool has_local_updates(CompressKind kind) { return kind == kLocalSgd || kind == kElasticAveraging || kind == kDiloco; }

bool lets_copies_drift(CompressKind kind) { return has_local_updates(kind) || kind == kZeroOneAdam; }

std::int64_t interval_of(const CompressConfig& compress) {
  if (compress.interval) return *compress.interval;
  if (compress.kind == kDiloco) return 500;
  return compress.kind == kElasticAveraging ? 10 : 8;
}

std::string fit_into_steps(CompressConfig& compress, std::int64_t steps) {
  constexpr std::int64_t kRounds = 3;
  std::vector<std::string> changed;
  if (compress.kind == kNone) return "";
  const std::int64_t most_start = std::max<std::int64_t>(0, steps - kRounds);
  if (compress.start > most_start) {
    compress.start = most_start;
    changed.push_back(fmt::format("compress.start = {}", most_start));
  }
  if (compress.kind == kOnebitAdam && compress.freeze_after.value_or(steps) > most_start) {
    compress.freeze_after = std::max<std::int64_t>(1, most_start);
    changed.push_back(fmt::format("compress.freeze_after = {}", *compress.freeze_after));
  }
  if (compress.kind == kZeroOneAdam && compress.variance_scale > 1) {
    // Dense steps first: with a variance of one gradient alone some element's is so small beside the common scale that
    // its step is thousands of times another's, and no two orders of summation agree afterwards.
    compress.start = std::max(compress.start, std::min(most_start, steps / 3));
    compress.variance_scale = 1;
    compress.local_scale = std::max<std::int64_t>(1, 2 * steps / 3);
    compress.max_local_steps = 2;
    changed.push_back(fmt::format(
        "compress.start = {}, compress.variance_scale = 1, compress.local_scale = {}, compress.max_local_steps = 2",
        compress.start, compress.local_scale));
  }
  if (has_local_updates(compress.kind)) {
    const std::int64_t most = std::max<std::int64_t>(1, (steps - compress.start) / kRounds);
    if (interval_of(compress) > most) {
      compress.interval = std::max<std::int64_t>(1, most / compress.fragments) * compress.fragments;
      compress.delay = std::min(compress.delay, *compress.interval - 1);
      changed.push_back(fmt::format("compress.interval = {}", *compress.interval));
    }
  }
  return fmt::format("{}", fmt::join(changed, ", "));
}

}  // namespace trireme::spec
