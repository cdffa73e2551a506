#include "trireme/train/diagnose/explain.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/layout/mesh.h"
#include "trireme/nn/state.h"
#include "trireme/parallel/parallel_groups.h"
#include "trireme/plan/from_recipe.h"
#include "trireme/plan/memory.h"

namespace trireme::train {
namespace {

/// "dp", "cp%2" of a group that is called "cp%2 0".
std::string axes_of(const comm::Group& group) { return group.name().substr(0, group.name().find(' ')); }

/// Which of the formulas' groups a group of the mesh is.
class GroupNames {
 public:
  GroupNames(const spec::LayoutConfig& layout, const layout::Mesh& mesh) : layout_(layout), mesh_(mesh) {
    if (layout.ep == 1) return;
    layout::AxisNames axes = parallel::expert_axes(mesh, layout.ep);
    std::ranges::sort(axes);
    experts_ = fmt::format("{}", fmt::join(axes, "."));
  }

  std::string of(const comm::Group* group) const { return group == nullptr ? "" : of(axes_of(*group)); }
  /// Along which rows of experts travel; empty: nowhere.
  std::string experts() const { return experts_.empty() ? "" : of(experts_); }

 private:
  std::string of(const std::string& axes) const {
    if (axes == "tp") return "tp";
    if (axes.starts_with("tp%")) return "tp copies";
    if (axes == "pp") return "pp";
    const bool shards_all = layout_.zero > 0 && !layout_.zero_group;
    const int copies = mesh_.size("dp") * layout_.cp;
    if (axes == "dp" && layout_.cp == 1 && copies > 1) return shards_all ? "shard" : "data";
    if (axes == "cp.dp") return shards_all ? "shard" : "data";
    if (axes == experts_ && axes != "cp") return layout_.zero_group ? "shard" : "ep";
    if (axes.starts_with("cp%")) return "cp ulysses";
    if (axes.starts_with("cp/")) return "cp outer";
    if (axes.starts_with("dp%")) return "shard";
    if (axes.find("dp/") != std::string::npos) return layout_.zero_group ? "across" : "expert copies";
    return axes;
  }

  const spec::LayoutConfig& layout_;
  const layout::Mesh& mesh_;
  std::string experts_;
};

int size_of(const comm::Group* group) { return group == nullptr ? 1 : group->size(); }

/// Buckets by the ranks that sum them, and how often they travel. Two directions of a pipeline have a part of the
/// micro-batches each.
void count_buckets(plan::TrafficTask& task, const Engine::Account& account, const std::map<int, Engine::Passes>& passes,
                   const GroupNames& names) {
  const std::vector<parallel::Bucket>& buckets = account.data_parallel->buckets();
  std::vector<double> uses(buckets.size()), backwards(buckets.size()), fetched(buckets.size());
  for (const auto& [bucket, key] : account.data_parallel->bucket_uses()) {
    const Engine::Passes& one = passes.at(key);
    fetched[bucket] += static_cast<double>(buckets[bucket].elements * one.fetches);
    uses[bucket] += 1;
    backwards[bucket] += static_cast<double>(one.weight_backwards);
  }
  const auto summed_with = [&](const parallel::Bucket& bucket) -> plan::SummedGradients& {
    plan::SummedGradients summed{.group = names.of(bucket.group),
                                 .across = names.of(bucket.rest),
                                 .everyone = names.of(bucket.everyone),
                                 .ranks = size_of(bucket.group),
                                 .others = size_of(bucket.rest)};
    summed.all = summed.ranks * summed.others;
    for (plan::SummedGradients& one : task.gradients) {
      if (one.group == summed.group && one.across == summed.across && one.ranks == summed.ranks &&
          one.others == summed.others)
        return one;
    }
    return task.gradients.emplace_back(std::move(summed));
  };
  for (std::size_t i = 0; i < buckets.size(); ++i) {
    plan::SummedGradients& summed = summed_with(buckets[i]);
    summed.fetched += static_cast<std::int64_t>(fetched[i]);
    if (!buckets[i].trainable) continue;
    summed.parameters += buckets[i].elements;
    const auto elements = static_cast<double>(buckets[i].elements);
    const auto width = static_cast<double>(c10::elementSize(buckets[i].gradient_type));
    const double reduced = elements * (task.config.layout.reduce == spec::ReduceKind::kBf16 ? 2 : width);
    summed.kept_bytes += elements * width;
    summed.reduced_bytes += reduced;
    if (task.config.layout.find_unused) summed.asked += static_cast<std::int64_t>(buckets[i].members.size());
    summed.predicted += buckets[i].elements * passes.at(buckets[i].key).predictions;
    // One that several units add to travels when all of them have.
    summed.scattered_bytes += reduced * backwards[i] / uses[i];
  }
}

/// How often layers run, and by that what travels.
void count_passes(plan::TrafficTask& task, const Engine::Account& account, const GroupNames& names) {
  std::map<int, Engine::Passes> passes = account.passes;
  if (passes.empty()) {
    const auto micros = static_cast<double>(task.micros);
    const spec::ModelShape& shape = task.job.shape;
    Engine::Passes all{.layers = account.layers,
                       .encoder_layers = shape.num_encoder_layers,
                       .embedding = account.embedding,
                       .encoder_embedding = shape.num_encoder_layers > 0,
                       .head = account.head,
                       .forward = micros,
                       .backward = micros,
                       .fetches = 2 * task.micros,
                       .weight_backwards = task.micros};
    for (std::int64_t layer = 0; layer < all.layers; ++layer)
      all.expert_layers += spec::has_experts(shape, layer) ? 1 : 0;
    for (std::int64_t layer = 0; layer < all.encoder_layers; ++layer)
      all.encoder_expert_layers += spec::has_experts(shape, layer) ? 1 : 0;
    passes[0] = all;
  }
  for (const auto& [chunk, one] : passes) {
    const plan::PassCount count{one.forward, one.again, one.backward};
    task.layer_passes += count * static_cast<double>(one.layers);
    task.expert_passes += count * static_cast<double>(one.expert_layers);
    task.encoder_expert_passes += count * static_cast<double>(one.encoder_expert_layers);
    task.encoder_passes += count * static_cast<double>(one.encoder_layers);
    if (one.embedding) task.embedding_passes += count;
    if (one.encoder_embedding) task.encoder_embedding_passes += count;
    if (one.head) task.head_passes += count;
  }
  count_buckets(task, account, passes, names);
}

plan::StageMessages messages_of(const Engine::Boundaries& all) {
  return {.hidden = all.hidden, .source = all.source, .ids = all.ids};
}

plan::TrafficTask task_of(Trainer& trainer, const Engine::Account& account, const GroupNames& names) {
  const spec::Recipe& recipe = trainer.recipe();
  const Share share = trainer.engine().share();
  const StepPlan plan = plan_step(recipe, trainer.position(), share);
  plan::TrafficTask task{.job = plan::job_of(recipe, trainer.shape()),
                         .config = spec::parallel_config(recipe, trainer.mesh().ranks(), 1)};
  task.config.layout.dp = trainer.mesh().size("dp");
  task.job.seq_len = share.length;
  task.source_seq_len = recipe.data.source_seq_len.value_or(share.length);
  task.config.micro_batch_size =
      plan.microbatches.empty() ? 0 : static_cast<std::int64_t>(plan.microbatches.front().size());
  task.micros = static_cast<std::int64_t>(plan.microbatches.size());
  task.layers = account.layers;
  task.embedding = account.embedding;
  task.head = account.head;
  count_passes(task, account, names);
  task.expert_group = names.experts();
  task.load_group = names.of(trainer.engine().load_ranks());
  task.load_ranks = size_of(trainer.engine().load_ranks());
  task.copied_over_tp = account.data_parallel->slice_elements(task.config.layout.tp);
  const std::int64_t keys = task.job.shape.num_kv_heads;
  if (keys > 1 && keys < task.config.layout.tp) {
    task.copied_keys = account.data_parallel->slice_elements(task.config.layout.tp / static_cast<int>(keys));
  }
  task.sent = messages_of(account.sent);
  task.received = messages_of(account.received);
  for (const Engine::CopySum& one : account.copies) task.copied_bytes += one.bytes * (1 - 1.0 / one.group->size());
  task.loss_terms = account.loss_terms;
  return task;
}

double sent_by(const comm::Group& group) {
  double bytes = 0;
  for (int op = 0; op < comm::kOps; ++op) {
    bytes += static_cast<double>(group.counters(static_cast<comm::Op>(op)).sent_bytes);
  }
  return bytes;
}

/// Elements that a rank updates.
double owned_elements(double elements, int zero, int ranks) { return zero > 0 ? elements / ranks : elements; }

}  // namespace

Explanation explain(Trainer& trainer) {
  Engine& engine = trainer.engine();
  trainer.rehearse();  // in the first step ranks agree on the names of losses
  engine.data_parallel().wait_for_weights();
  for (comm::Group* group : engine.account().groups->all()) group->reset_counters();
  for (const Engine::CopySum& one : engine.account().copies) one.group->reset_counters();
  trainer.rehearse();
  const Engine::Account account = engine.account();
  account.data_parallel->wait_for_weights();
  const layout::Mesh& mesh = trainer.mesh();
  const GroupNames names(trainer.recipe().layout, mesh);
  const plan::TrafficTask task = task_of(trainer, account, names);
  Explanation out{.mesh = layout::to_text(mesh),
                  .gradients = account.data_parallel->reducer().description(),
                  .lines = plan::traffic_of(task)};
  if (!trainer.planned().stages.empty()) out.planned = trainer.planned().table();

  const parallel::DataParallel::Bytes bytes = account.data_parallel->bytes();
  const spec::LayoutConfig& layout = task.config.layout;
  const int sharing = task.config.zero_ranks();
  const double sum_bytes = task.job.sum_bytes(), compute_bytes = task.job.compute_bytes();
  nn::State state;
  trainer.optimizer().add_state(state);
  double elements = 0;
  for (const nn::Param& param : account.data_parallel->owned())
    elements += static_cast<double>(layout::unpartitioned_elements(param.placement));
  const int moments = spec::moments_of(trainer.recipe().optim);
  const plan::ModelStates formula = plan::model_states(task.job, task.config, elements);
  // Formulas of masters and gradients count one type for all.
  const bool wide_states = trainer.recipe().precision.master_weights == spec::MasterWeights::kFp32 &&
                           trainer.recipe().optim.state_dtype == spec::StateDtype::kFp32;
  const bool wide_gradients = wide_states && !spec::has_narrow_gradients(trainer.recipe().precision);
  const std::string n = layout.zero > 0 ? fmt::format(", N = {}", sharing) : "";
  const auto one = [&](int stage) { return layout.zero >= stage ? "Psi/N" : "Psi"; };
  const std::string full = fmt::format("{:.0f} bytes x ", sum_bytes);
  const bool offloaded = layout.offload != spec::OffloadKind::kNone;
  // With offload a rank's share is on the host; without ZeRO 2 the device keeps whole gradients until they are summed.
  const double share = owned_elements(elements, layout.zero, sharing) * sum_bytes;
  const bool streamed = offloaded && layout.zero >= 2;
  out.memory = {
      {"parameters", fmt::format("{:.0f} bytes x {}{}", compute_bytes, one(3), n),
       static_cast<double>(bytes.parameters), formula.weights},
      {"master weights", offloaded ? "on the host" : full + one(1), static_cast<double>(bytes.masters),
       offloaded ? 0 : formula.master_weights},
      {"gradients", streamed ? "on the host, once summed" : full + one(2), static_cast<double>(bytes.gradients),
       streamed ? 0 : formula.gradients},
      {offloaded ? "optimizer, on the host" : "optimizer", fmt::format("{} x {}{}", moments, full, one(1)),
       static_cast<double>(state.bytes()), formula.optimizer},
  };
  if (offloaded) {
    out.memory.push_back(
        {"master weights, on the host", full + one(1), static_cast<double>(bytes.host_masters), share});
    out.memory.push_back({"gradients, on the host", full + one(1), static_cast<double>(bytes.host_gradients), share});
    if (bytes.host_values > 0) {
      out.memory.push_back({"new weights, on the host", fmt::format("{:.0f} bytes x {}", compute_bytes, one(1)),
                            static_cast<double>(bytes.host_values), share / sum_bytes * compute_bytes});
    }
  }
  out.memory.push_back({"buckets", "what is gathered or on its way", static_cast<double>(bytes.buckets), 0});
  if (bytes.reducer > 0) {
    out.memory.push_back({"residuals", "what compression has left out", static_cast<double>(bytes.reducer), 0});
  }
  if (account.activations > 0) {
    out.memory.push_back(
        {"activations", "of one micro", static_cast<double>(account.activations),
         task.job.shape.num_encoder_layers > 0 || !task.job.shape.norm_first ? 0 : plan::saved_bytes(task)});
  }
  for (Explanation::Line& line : out.memory) {
    const bool kept = line.name.starts_with("master weights") || line.name.starts_with("optimizer");
    if ((kept && !wide_states) || (line.name.starts_with("gradients") && !wide_gradients)) {
      line.formula = 0;
      line.formula_text = "of several types";
    }
  }
  std::map<std::string, double> measured;
  for (const comm::Group* group : account.groups->all()) {
    const double sent = sent_by(*group);
    if (sent > 0) measured[names.of(group)] += sent;
  }
  for (const Engine::CopySum& sum : account.copies) measured["pp copies"] += sent_by(*sum.group);
  std::map<std::string, double> formulas;
  for (const plan::TrafficLine& line : out.lines) formulas[line.group] += line.wire_bytes;
  for (const auto& [group, predicted] : formulas) {
    if (predicted > 0) measured.try_emplace(group, 0);  // what was not sent is to be seen too
  }
  for (const auto& [group, sent] : measured) {
    out.traffic.push_back({.name = group, .measured = sent, .formula = formulas.contains(group) ? formulas[group] : 0});
  }
  return out;
}

std::string Explanation::text() const {
  const auto off = [](const Line& line) {
    if (line.formula == 0) return std::string();
    return line.measured == line.formula ? std::string("equal")
                                         : fmt::format("{:+.1f} %", 100 * (line.measured / line.formula - 1));
  };
  const auto size = [](double bytes) { return bytes == 0 ? std::string("-") : short_bytes(bytes); };
  using enum TextTable::Align;
  TextTable kept({{"rank 0 keeps"}, {"measured", kRight}, {"formula", kRight}, {"differs", kRight}, {"which is"}});
  for (const Line& line : memory) {
    kept.add({line.name, size(line.measured), size(line.formula), off(line), line.formula_text});
  }
  TextTable sent({{"rank 0 sends in a step"}, {"measured", kRight}, {"formula", kRight}, {"differs", kRight}});
  for (const Line& line : traffic) sent.add({line.name, size(line.measured), size(line.formula), off(line)});
  TextTable parts({{"group"}, {"bytes", kRight}, {"which are"}});
  for (const plan::TrafficLine& line : lines) parts.add({line.group, size(line.wire_bytes), line.what});
  std::string text = fmt::format("ranks: {}\ngradients: {}\n\n{}", mesh, gradients, kept.text());
  if (!planned.empty()) text += "\n" + planned;
  if (!traffic.empty()) text += fmt::format("\n{}\nformulas:\n{}", sent.text(), parts.text("  "));
  return text;
}

}  // namespace trireme::train
