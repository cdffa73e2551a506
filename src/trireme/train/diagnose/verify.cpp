#include "trireme/train/diagnose/verify.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/checkpoint/gather.h"
#include "trireme/data/open_samples.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/layout/placement.h"
#include "trireme/nn/parallel_context.h"
#include "trireme/parallel/compress/exchange.h"
#include "trireme/train/diagnose/compression_twin.h"
#include "trireme/train/engine/freeze.h"
#include "trireme/train/engine/pipeline_table.h"
#include "trireme/train/engine/trainer.h"
#include "trireme/train/servers/batch_portions.h"
#include "trireme/train/servers/downpour_driver.h"
#include "trireme/train/servers/downpour_twin.h"

namespace trireme::train {
namespace {

/// What a run was, as far as one rank saw it.
struct Trace {
  std::vector<double> losses, norms;
  std::vector<std::string> terms;  ///< of the loss, by name; the same in every step
  std::vector<double> means;       ///< [step][term]
  std::vector<double> loads;       ///< [step][layer][expert]: tokens; whole numbers
  std::vector<double> biases;      ///< of routers, after the last: [layer][expert], largest and smallest copy
  std::map<std::string, at::Tensor> gradients;                               ///< of the first step, from equal weights
  std::map<std::string, at::Tensor> weights;                                 ///< after the last
  std::map<std::string, layout::Placement> gradient_placements, placements;  ///< then; experts may have moved since
  // With [compress].
  std::vector<parallel::CompressedPart> parts;  ///< of this rank
  int dp = 1, dp_rank = 0;
  std::optional<VerifyResult::Compressed> compressed;
  DownpourJournal journal;  ///< with train.mode = "downpour": of this rank
};

/// In the type that runs are compared in: what is kept in 16 bits too.
at::Tensor copy_here(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  return tensor.to(at::TensorOptions(type).device(at::kCPU), /*non_blocking=*/false, /*copy=*/true);
}

/// The biases of all layers, each as the largest and as the smallest of its copies: the same unless copies differ.
std::vector<double> biases_of(const nn::State& state, const spec::ModelShape& shape, comm::Group& world) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  std::vector<double> largest, smallest;  // the latter negated
  if (shape.experts.bias_update_rate == 0) return largest;
  for (const std::string& layer : models::expert_layer_names(shape)) {
    const nn::StateTensor* bias = state.find("router_bias/" + layer);
    for (std::int64_t i = 0; i < shape.experts.num_experts; ++i) {
      const double value = bias != nullptr ? bias->tensor.const_data_ptr<float>()[i] : 0;
      largest.push_back(bias != nullptr ? value : kNone);
      smallest.push_back(bias != nullptr ? -value : kNone);
    }
  }
  largest.insert(largest.end(), smallest.begin(), smallest.end());
  if (world.size() > 1)
    world.all_reduce(comm::Buffer{largest.data(), largest.size(), comm::DType::kF64}, comm::Reduce::kMax).wait();
  for (std::size_t i = largest.size() / 2; i < largest.size(); ++i) largest[i] = -largest[i];
  return largest;
}

Trace run_trace(const spec::Recipe& recipe, comm::Group& world, std::int64_t steps, MakeEngine& make = make_engine) {
  Trace trace;
  const auto samples = data::open_samples(recipe, data::Split::kTrain);
  Trainer trainer(recipe, model_shape(recipe), world, *samples, make);
  trainer.keep_journal();
  trainer.on_gradients([&](nn::Params& params) {
    if (!trace.gradients.empty()) return;
    for (const nn::Param& param : params) {
      if (!param.trainable) continue;
      trace.gradients[param.name] = copy_here(param.gradient);
      trace.gradient_placements[param.name] = param.placement;
    }
  });
  for (std::int64_t step = 0; step < steps; ++step) {
    const StepReport report = trainer.step();
    trace.losses.push_back(report.loss);
    trace.norms.push_back(report.gradient_norm);
    trace.terms.clear();
    for (const observe::NamedLoss& term : report.losses) {
      trace.terms.push_back(term.name);
      trace.means.push_back(term.mean);
    }
    for (const nn::moe::LayerLoads& layer : report.loads) {
      for (const std::int64_t count : layer.counts) trace.loads.push_back(static_cast<double>(count));
    }
  }
  trace.biases = biases_of(trainer.state(), model_shape(recipe), world);
  for (const nn::Param& param : trainer.params()) {
    trace.weights[param.name] = copy_here(param.master);
    trace.placements[param.name] = param.placement;
  }
  if (const DownpourJournal* journal = downpour_journal(trainer.driver())) trace.journal = *journal;
  const parallel::BucketReducer& reducer = trainer.engine().data_parallel().reducer();
  if (const parallel::CompressionReport* report = reducer.report()) {
    trace.parts = reducer.compressed_parts();
    trace.dp = trainer.mesh().size(nn::kDataAxis);
    trace.dp_rank = trainer.mesh().coordinate(world.rank(), nn::kDataAxis);
    trace.compressed = {.kind = spec::compress_name(recipe.compress.kind),
                        .elements = report->elements,
                        .rounds = report->rounds,
                        .sent_bytes = report->sent_bytes,
                        .dense_bytes = report->dense_bytes};
  }
  return trace;
}

/// Rank 0's numbers, on every rank.
void tell(std::vector<double>& numbers, std::size_t count, comm::Group& world) {
  numbers.resize(count);
  if (world.size() > 1) world.broadcast(comm::Buffer{numbers.data(), count, comm::DType::kF64}, 0).wait();
}

/// What rank 0 knows of the steps of a reference, on every rank.
void tell_steps(Trace& trace, std::size_t steps, comm::Group& world) {
  tell(trace.losses, steps, world);
  tell(trace.norms, steps, world);
  std::vector<double> counts{static_cast<double>(trace.means.size()), static_cast<double>(trace.loads.size()),
                             static_cast<double>(trace.biases.size())};
  tell(counts, 3, world);
  tell(trace.means, static_cast<std::size_t>(counts[0]), world);
  tell(trace.loads, static_cast<std::size_t>(counts[1]), world);
  tell(trace.biases, static_cast<std::size_t>(counts[2]), world);
}

/// Rank 0's tensor, whole, on every rank.
at::Tensor broadcast_param(const std::map<std::string, at::Tensor>& tensors, const nn::Param& param,
                           at::ScalarType type, comm::Group& world) {
  at::Tensor whole = world.rank() == 0 ? tensors.at(param.name).contiguous() : at::empty(param.placement.shape, type);
  if (world.size() > 1) world.broadcast(device::to_buffer(whole), 0).wait();
  return whole;
}

/// "layers.3" of "layers.3.mlp.in.weight"; "head" of "head.weight".
std::string layer_of(const std::string& name) {
  std::size_t end = name.find('.');
  const std::size_t next = end == std::string::npos ? end : name.find('.', end + 1);
  if (next != std::string::npos && std::isdigit(static_cast<unsigned char>(name[end + 1])) != 0) end = next;
  return name.substr(0, end);
}

/// The norm of what this rank has less what the reference has there.
template <typename T>
double difference_norm(const at::Tensor& mine, const layout::Placement& placement, const at::Tensor& whole) {
  const at::Tensor flat = mine.contiguous();
  const T *a = flat.const_data_ptr<T>(), *b = whole.const_data_ptr<T>();
  double sum = 0;
  for (const layout::ContiguousRun& run : layout::runs(placement)) {
    for (layout::Index i = 0; i < run.count; ++i) {
      const double difference = static_cast<double>(a[run.local + i]) - static_cast<double>(b[run.global + i]);
      sum += difference * difference;
    }
  }
  return std::sqrt(sum);
}

/// Compares one kind of tensor for every parameter.
class Comparison {
 public:
  /// `floor`: a tensor's norm counts as no less than this part of the largest in its layer.
  Comparison(const models::Model& skeleton, comm::Group& world, double tolerance, double floor)
      : skeleton_(skeleton), world_(world), tolerance_(tolerance), floor_(floor) {}

  VerifyDifference run(const std::map<std::string, at::Tensor>& reference,
                       const std::map<std::string, at::Tensor>& mine,
                       const std::map<std::string, layout::Placement>& placements, at::ScalarType type,
                       const std::map<std::string, bool>& wanted) {
    std::vector<double> norms, differences;
    std::vector<const nn::Param*> params;
    for (const nn::Param& param : skeleton_.params) {
      if (!wanted.at(param.name)) continue;
      const at::Tensor whole = broadcast_param(reference, param, type, world_);
      norms.push_back(at::linalg_vector_norm(whole, 2, {}, false, at::kDouble).item<double>());
      const auto held = mine.find(param.name);
      double found = 0;
      if (held != mine.end()) {
        const layout::Placement& placement = placements.at(param.name);
        found = type == at::kDouble ? difference_norm<double>(held->second, placement, whole)
                                    : difference_norm<float>(held->second, placement, whole);
        if (!std::isfinite(found)) found = std::numeric_limits<double>::infinity();
      }
      if (world_.size() > 1) world_.all_reduce(comm::Buffer{&found, 1, comm::DType::kF64}, comm::Reduce::kMax).wait();
      require_held(param, held != mine.end() ? &placements.at(param.name) : nullptr);
      differences.push_back(found);
      params.push_back(&param);
    }
    return judge(params, norms, differences);
  }

 private:
  /// Every element is somewhere: what nobody holds would not differ.
  void require_held(const nn::Param& param, const layout::Placement* placement) const {
    std::vector<std::uint8_t> held(static_cast<std::size_t>(param.elements()), 0);
    if (placement != nullptr) {
      for (const layout::Range& range : layout::held_ranges(*placement)) {
        std::fill(held.begin() + range.begin, held.begin() + range.end, std::uint8_t{1});
      }
    }
    if (world_.size() > 1) {
      world_.all_reduce(comm::Buffer{held.data(), held.size(), comm::DType::kU8}, comm::Reduce::kMax).wait();
    }
    const auto missing = std::ranges::find(held, std::uint8_t{0});
    TRIREME_CHECK(missing == held.end(), "no rank holds element {} of {}", missing - held.begin(), param.name);
  }

  VerifyDifference judge(const std::vector<const nn::Param*>& params, const std::vector<double>& norms,
                         const std::vector<double>& differences) const {
    std::map<std::string, double> largest;
    for (std::size_t i = 0; i < params.size(); ++i) {
      double& norm = largest[layer_of(params[i]->name)];
      norm = std::max(norm, norms[i]);
    }
    VerifyDifference worst;
    for (std::size_t i = 0; i < params.size(); ++i) {
      const double scale = std::max(norms[i], floor_ * largest[layer_of(params[i]->name)]);
      const double relative = differences[i] == 0 ? 0 : differences[i] / scale;
      if (worst.name.empty() || relative > worst.relative) {
        worst.name = params[i]->name;
        worst.relative = relative;
      }
      if (relative > tolerance_ && worst.first_parting.empty()) worst.first_parting = params[i]->name;
    }
    return worst;
  }

  const models::Model& skeleton_;
  comm::Group& world_;
  double tolerance_, floor_;
};

double relative(double a, double b) { return a == b ? 0 : std::abs(a - b) / std::max(std::abs(a), std::abs(b)); }

}  // namespace

VerifyTolerance tolerance_of(spec::Precision precision) {
  switch (precision) {
    case spec::Precision::kFp64:
      return {.loss = 1e-9, .gradients = 1e-9, .weights = 1e-9};
    case spec::Precision::kFp32:
      return {.loss = 1e-5, .gradients = 1e-4, .weights = 1e-3};
    case spec::Precision::kBf16:
    case spec::Precision::kFp16:
      break;
  }
  // Sums in another order differ by roundings of 16-bit numbers, and Adam makes whole steps of small differences.
  return {.loss = 5e-3, .gradients = 5e-2, .weights = 5e-2};
}

namespace {

/// Whole tensors on rank 0, whatever the layout that they came from.
void make_whole(std::map<std::string, at::Tensor>& tensors, const std::map<std::string, layout::Placement>& placements,
                comm::Group& world) {
  nn::State parts;
  for (const auto& [name, tensor] : tensors) parts.add(name, tensor.contiguous(), placements.at(name));
  const nn::State whole = checkpoint::gather_whole(parts, world);
  tensors.clear();
  for (const nn::StateTensor& entry : whole.tensors()) tensors[entry.name] = entry.tensor;
}

Trace run_reference(const VerifyRequest& request, comm::Group& world) {
  const std::unique_ptr<comm::Group> alone = world.split(world.rank(), 0, "alone");
  Trace trace;
  if (!request.reference_alone) {
    trace = run_trace(request.reference, world, request.steps);
    make_whole(trace.gradients, trace.gradient_placements, world);
    make_whole(trace.weights, trace.placements, world);
  } else if (world.rank() == 0) {
    trace = run_trace(request.reference, *alone, request.steps);
  }
  tell_steps(trace, static_cast<std::size_t>(request.steps), world);
  return trace;
}

/// A schedule that updates while micros are on their way computes with delayed weights: it is held against its own
/// mathematics, not against one rank's.
Trace run_delayed(const VerifyRequest& request, const spec::Recipe& recipe, comm::Group& world) {
  const std::unique_ptr<comm::Group> alone = world.split(world.rank(), 0, "alone");
  Trace trace;
  if (world.rank() == 0) {
    spec::Recipe delayed = request.reference;
    delayed.layout = {.dp = world.size() / static_cast<int>(recipe.layout.ranks_per_copy()), .pp = recipe.layout.pp};
    delayed.pipeline = recipe.pipeline;
    trace = run_trace(delayed, *alone, request.steps, make_delayed_engine);
  }
  tell_steps(trace, static_cast<std::size_t>(request.steps), world);
  return trace;
}

std::string first_term_that_differs(const Trace& mine, const Trace& reference, std::size_t step, double tolerance) {
  if (mine.means.size() != reference.means.size()) return "that only one side has";
  for (std::size_t i = 0; i < mine.terms.size(); ++i) {
    const std::size_t at = step * mine.terms.size() + i;
    if (relative(mine.means[at], reference.means[at]) > tolerance) return mine.terms[i];
  }
  return "";
}

/// Whether experts got the same tokens in a step: whole numbers, so to the last one.
bool same_loads(const Trace& mine, const Trace& reference, std::size_t step, std::size_t steps) {
  if (mine.loads.size() != reference.loads.size()) return false;
  const std::size_t each = mine.loads.size() / steps;
  return std::equal(mine.loads.begin() + static_cast<std::ptrdiff_t>(step * each),
                    mine.loads.begin() + static_cast<std::ptrdiff_t>((step + 1) * each),
                    reference.loads.begin() + static_cast<std::ptrdiff_t>(step * each));
}

/// Steps side by side.
VerifyResult compare_steps(const spec::Recipe& recipe, const Trace& mine, const Trace& reference, std::int64_t steps) {
  VerifyResult result{.tolerance = tolerance_of(recipe.precision.compute)};
  for (std::size_t i = 0; i < static_cast<std::size_t>(steps); ++i) {
    result.steps.push_back({.loss = mine.losses[i],
                            .reference_loss = reference.losses[i],
                            .norm = mine.norms[i],
                            .reference_norm = reference.norms[i]});
    VerifyStep& step = result.steps.back();
    step.term = first_term_that_differs(mine, reference, i, result.tolerance.loss);
    if (step.term.empty() && !same_loads(mine, reference, i, static_cast<std::size_t>(steps)))
      step.term = "loads of experts";
    const bool same = step.term.empty() && relative(mine.losses[i], reference.losses[i]) <= result.tolerance.loss &&
                      relative(mine.norms[i], reference.norms[i]) <= result.tolerance.gradients;
    if (!same && !result.first_step) result.first_step = static_cast<std::int64_t>(i) + 1;
  }
  return result;
}

/// Tensors side by side; what differs more than in comparisons before is told.
void compare_tensors(const spec::Recipe& recipe, const Trace& mine, const Trace& reference, comm::Group& world,
                     VerifyResult& result) {
  const auto skeleton = models::build(model_shape(recipe));
  const at::ScalarType type = nn::master_type(recipe.precision.compute);
  std::map<std::string, bool> trainable, all;
  std::vector<std::string> names;
  for (const nn::Param& param : skeleton->params) {
    all[param.name] = trainable[param.name] = true;
    names.push_back(param.name);
  }
  for (const std::string& name : frozen_params(recipe.train.freeze, skeleton->shape, names)) trainable[name] = false;
  const auto worse = [](VerifyDifference& known, VerifyDifference found) {
    if (known.name.empty() || found.relative > known.relative) known.name = found.name, known.relative = found.relative;
    if (known.first_parting.empty()) known.first_parting = found.first_parting;
  };
  if (recipe.train.mode == spec::TrainMode::kSynchronous)  // else of parts, at other weights
    worse(result.gradients, Comparison(*skeleton, world, result.tolerance.gradients, /*floor=*/1e-2)
                                .run(reference.gradients, mine.gradients, mine.gradient_placements, type, trainable));
  // Adam makes whole steps of what is rounding in a gradient that is zero, so that a bias which begins at zero may end
  // anywhere near it; its layer's largest weights say how much that is.
  worse(result.weights, Comparison(*skeleton, world, result.tolerance.weights, /*floor=*/1)
                            .run(reference.weights, mine.weights, mine.placements, type, all));
  result.equal = !result.first_step && result.gradients.first_parting.empty() && result.weights.first_parting.empty();
}

VerifyResult compare(const spec::Recipe& recipe, const Trace& reference, std::int64_t steps, comm::Group& world) {
  const Trace mine = run_trace(recipe, world, steps);
  VerifyResult result = compare_steps(recipe, mine, reference, steps);
  compare_tensors(recipe, mine, reference, world, result);
  // Biases follow whole numbers, so to the bit, on every rank that has a copy.
  if (mine.biases != reference.biases) {
    if (result.weights.first_parting.empty()) result.weights.first_parting = "router_bias";
    result.equal = false;
  }
  return result;
}

// Compression changes the mathematics: it is held against a twin, which computes every copy's gradient in one process.

/// Every part once, of the first of its copies.
std::vector<parallel::CompressedPart> gather_parts(const Trace& mine, comm::Group& world) {
  auto list = nlohmann::ordered_json::array();
  for (const parallel::CompressedPart& part : mine.parts) {
    if (!part.first) continue;
    auto pieces = nlohmann::ordered_json::array();
    for (const layout::Piece& piece : part.placement.pieces)
      pieces.push_back({{"begin", piece.box.begin}, {"end", piece.box.end}, {"padding", piece.padding}});
    list.push_back({{"name", part.name},
                    {"shape", part.placement.shape},
                    {"pieces", pieces},
                    {"rows", part.rows},
                    {"columns", part.columns},
                    {"shard", part.shard},
                    {"copies", part.copies}});
  }
  parallel::CopyExchange exchange(world.size() > 1 ? &world : nullptr);
  const std::string text = list.dump();
  std::vector<parallel::CompressedPart> parts;
  std::vector<std::int64_t> lengths;
  exchange.start_lengths(static_cast<std::int64_t>(text.size()), lengths).wait();
  for (const parallel::Message& message :
       exchange.all_gather({text.begin(), text.end()}, {lengths.begin(), lengths.end()})) {
    for (const auto& entry : nlohmann::ordered_json::parse(message.begin(), message.end())) {
      parallel::CompressedPart& part = parts.emplace_back();
      part.name = entry.at("name").get<std::string>();
      part.rows = entry.at("rows").get<std::int64_t>();
      part.columns = entry.at("columns").get<std::int64_t>();
      part.shard = entry.at("shard").get<int>();
      part.copies = entry.at("copies").get<int>();
      part.placement.name = part.name;
      part.placement.shape = entry.at("shape").get<layout::Shape>();
      for (const auto& piece : entry.at("pieces")) {
        part.placement.pieces.push_back({.box = {.begin = piece.at("begin").get<std::vector<layout::Index>>(),
                                                 .end = piece.at("end").get<std::vector<layout::Index>>()},
                                         .padding = piece.at("padding").get<layout::Index>()});
      }
    }
  }
  const auto place = [](const parallel::CompressedPart& part) { return std::pair(part.shard, part.name); };
  std::ranges::stable_sort(parts, {}, place);
  // What several stages hold, each of them lists.
  const auto same = [&](const parallel::CompressedPart& a, const parallel::CompressedPart& b) {
    return place(a) == place(b) && layout::runs(a.placement) == layout::runs(b.placement);
  };
  const auto repeated = std::ranges::unique(parts, same);
  parts.erase(repeated.begin(), repeated.end());
  return parts;
}

int copies_of(const spec::Recipe& recipe, int dp) {
  const int per_copy = recipe.layout.tp * recipe.layout.cp;
  if (recipe.compress.across == spec::CompressAcross::kNode)
    return dp / std::min(dp, recipe.comm.ranks_per_node.value_or(1) / per_copy);
  return recipe.compress.workers.value_or(dp);
}

VerifyResult compare_with_twin(const spec::Recipe& recipe, std::int64_t steps, comm::Group& world) {
  const std::unique_ptr<comm::Group> alone = world.split(world.rank(), 0, "alone");
  Trace mine = run_trace(recipe, world, steps);
  const std::vector<parallel::CompressedPart> parts = gather_parts(mine, world);
  const int copies = copies_of(recipe, mine.dp);
  TwinTrace twin;
  if (world.rank() == 0) {
    twin = run_compression_twin(
        {.recipe = recipe, .alone = *alone, .dp = mine.dp, .copies = copies, .parts = parts, .steps = steps});
  }
  Trace reference{.losses = twin.losses,
                  .norms = twin.norms,
                  .terms = twin.terms,
                  .means = twin.means,
                  .loads = twin.loads,
                  .biases = twin.biases};
  tell_steps(reference, static_cast<std::size_t>(steps), world);
  VerifyResult result = compare_steps(recipe, mine, reference, steps);
  // Copies that differ are each compared with their own.
  const bool drifts = spec::lets_copies_drift(recipe.compress.kind);
  for (int copy = 0; copy < (drifts ? copies : 1); ++copy) {
    if (world.rank() == 0) {
      reference.gradients = twin.gradients.at(static_cast<std::size_t>(copy));
      reference.weights = twin.weights.at(static_cast<std::size_t>(copy));
    }
    Trace here = mine;
    if (drifts && mine.dp_rank / (mine.dp / copies) != copy) here.gradients.clear(), here.weights.clear();
    compare_tensors(recipe, here, reference, world, result);
  }
  if (mine.biases != reference.biases) {
    if (result.weights.first_parting.empty()) result.weights.first_parting = "router_bias";
    result.equal = false;
  }
  result.compressed = mine.compressed;
  std::int64_t most[2] = {mine.compressed->rounds, mine.compressed->elements};
  if (world.size() > 1) world.all_reduce(comm::Buffer{most, 2, comm::DType::kI64}, comm::Reduce::kMax).wait();
  if (most[0] == 0 || most[1] == 0) result.equal = false;
  return result;
}

/// Downpour SGD: which weights a replica has met follows from the order of messages, which the journals of all say.
/// Their replay on rank 0 is the reference.
VerifyResult compare_with_replay(const spec::Recipe& from, std::int64_t steps, comm::Group& world) {
  const std::unique_ptr<comm::Group> alone = world.split(world.rank(), 0, "alone");
  spec::Recipe recipe = from;
  recipe.train.steps = steps;  // the last one is a rest
  recipe.train.tokens.reset();
  const Trace mine = run_trace(recipe, world, steps);
  const auto journals = gather_journals(mine.journal.entries, world);
  Trace reference{.terms = mine.terms};
  if (world.rank() == 0) {
    spec::Recipe serial = recipe;
    spec::undistribute(serial);
    const auto samples = data::open_samples(serial, data::Split::kTrain);
    TrainState state(serial, model_shape(serial), *alone, *samples, make_engine);
    Replica replica(state, world.size());
    const DownpourTwinResult twin = replay_downpour(replica, journals,
                                                    {.servers = recipe.downpour.servers,
                                                     .copies = recipe.downpour.copies,
                                                     .first_weights = mine.journal.first_weights,
                                                     .filters = push_filters(recipe)});
    replica.set_weights(twin.weights);
    for (const nn::Param& param : state.engine.params()) reference.weights[param.name] = copy_here(param.master);
    for (const auto& [number, step] : twin.steps) {
      StepReport report;
      tell_losses(report, step.losses, step.counts);
      reference.losses.push_back(report.loss);
      reference.norms.push_back(step.norms / step.parts);
      for (const observe::NamedLoss& term : report.losses) reference.means.push_back(term.mean);
    }
  }
  tell_steps(reference, static_cast<std::size_t>(steps), world);
  VerifyResult result = compare_steps(recipe, mine, reference, steps);
  compare_tensors(recipe, mine, reference, world, result);
  return result;
}

/// L-BFGS on shards, beside the same portions and recursion in one process.
VerifyResult compare_with_one_process(const spec::Recipe& from, std::int64_t steps, comm::Group& world) {
  const std::unique_ptr<comm::Group> alone = world.split(world.rank(), 0, "alone");
  spec::Recipe recipe = from;
  recipe.train.steps = steps;  // the last one is a rest
  recipe.train.tokens.reset();
  const Trace mine = run_trace(recipe, world, steps);
  Trace reference{.terms = mine.terms};
  if (world.rank() == 0) {
    spec::Recipe serial = recipe;
    spec::undistribute(serial);
    serial.optim = {.kind = spec::OptimizerKind::kSgd, .momentum = 0};  // nobody asks for its updates
    const auto samples = data::open_samples(serial, data::Split::kTrain);
    TrainState state(serial, model_shape(serial), *alone, *samples, make_engine);
    const SandblasterTwin twin =
        run_sandblaster_twin(state, portion_rows(recipe, BatchPortions::batch_rows(state), world.size()), steps);
    reference.losses = reference.means = twin.losses;
    reference.norms = twin.norms;
    Replica(state, /*parts=*/1).set_weights(twin.weights);
    for (const nn::Param& param : state.engine.params()) reference.weights[param.name] = copy_here(param.master);
  }
  tell_steps(reference, static_cast<std::size_t>(steps), world);
  VerifyResult result = compare_steps(recipe, mine, reference, steps);
  compare_tensors(recipe, mine, reference, world, result);
  return result;
}

}  // namespace

void verify(const VerifyRequest& request, comm::Rank& rank, const OnVerified& each) {
  at::set_num_threads(request.reference.train.threads.value_or(1));
  std::optional<Trace> reference;
  for (std::size_t i = 0; i < request.recipes.size(); ++i) {
    const spec::Recipe& recipe = request.recipes[i];
    if (recipe.compress.kind != spec::CompressKind::kNone) {
      each(i, compare_with_twin(recipe, request.steps, rank.world()));
      continue;
    }
    if (recipe.train.mode == spec::TrainMode::kDownpour) {
      each(i, compare_with_replay(recipe, request.steps, rank.world()));
      continue;
    }
    if (recipe.train.mode == spec::TrainMode::kSandblaster) {
      each(i, compare_with_one_process(recipe, request.steps, rank.world()));
      continue;
    }
    if (recipe.layout.pp > 1 && is_asynchronous(recipe)) {
      each(i, compare(recipe, run_delayed(request, recipe, rank.world()), request.steps, rank.world()));
      continue;
    }
    if (!reference) reference = run_reference(request, rank.world());
    each(i, compare(recipe, *reference, request.steps, rank.world()));
  }
}

}  // namespace trireme::train
