#include "trireme/train/run/run_writer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "trireme/base/cores.h"
#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/base/new_file.h"
#include "trireme/base/text.h"
#include "trireme/base/units.h"
#include "trireme/cost/cost_table.h"
#include "trireme/cost/hardware.h"
#include "trireme/formats/hf_writer.h"
#include "trireme/kernels/cuda.h"
#include "trireme/observe/expert_loads.h"
#include "trireme/plan/compress_price.h"
#include "trireme/plan/job.h"

namespace trireme::train {

namespace fs = std::filesystem;

namespace {

/// What the maker states of a card as its driver names it: published utilisations are shares of that. Nothing for cards
/// that recipes/devices does not have, and for fp64.
std::optional<observe::Peak> stated_peak(const char* card, spec::Precision precision) {
  if (precision == spec::Precision::kFp64) return std::nullopt;
  try {
    const auto device = cost::find_device_of_driver(card);
    const double flops =
        device ? cost::peak(*device, plan::arithmetic_of(spec::PrecisionConfig{.compute = precision})) : 0;
    if (flops > 0) return observe::Peak{.flops = flops, .how = fmt::format("stated of {}", card), .when = {}};
  } catch (const ConfigError& error) {
    log_warn("MFU is not known, since a device's file cannot be read: {}", error.message());
  }
  return std::nullopt;
}

/// What the terms of a loss add to the total, for a line: " (loss 2.3010, z_loss 0.0042)"; empty for one term.
std::string terms_text(const std::vector<observe::NamedLoss>& losses) {
  constexpr std::size_t kShown = 4;
  if (losses.size() < 2) return "";
  std::vector<std::string> texts;
  for (const observe::NamedLoss& term : losses) {
    if (term.weight == 0) continue;  // a metric: in the files
    if (texts.size() < kShown) texts.push_back(fmt::format("{} {:.4f}", term.name, term.weight * term.mean));
  }
  return texts.size() < 2 ? "" : fmt::format(" ({})", fmt::join(texts, ", "));
}

/// Of the model that the run begins from: its export has them again.
void keep_published_texts(const spec::ModelConfig& model, const checkpoint::RunFolder& folder) {
  if (!model.init_from || fs::exists(folder.published())) return;
  fs::path from = *model.init_from;
  if (fs::exists(from / "published" / "config.json")) from /= "published";
  if (!fs::exists(from / "config.json")) return;
  fs::create_directory(folder.published());
  fs::copy_file(from / "config.json", folder.published() / "config.json");
  for (const fs::path& text : formats::hf_companions(from)) fs::copy_file(text, folder.published() / text.filename());
}

}  // namespace

std::optional<fs::path> tokenizer_file(const spec::DataConfig& data) {
  if (!data.tokenizer || *data.tokenizer == "bytes") return std::nullopt;
  const fs::path path = *data.tokenizer;
  return fs::is_directory(path) ? path / "tokenizer.json" : path;
}

spec::Recipe effective_recipe(const RunRequest& request, const spec::ModelShape& shape) {
  spec::Recipe recipe = request.recipe;
  const spec::ModelConfig given = recipe.model;
  recipe.model = spec::resolved(spec::config_of(shape));
  if (given.init_from) recipe.model.init_from = fs::absolute(*given.init_from).string();
  recipe.model.init_partial = given.init_partial;
  recipe.model.init_resize_vocab = given.init_resize_vocab;
  recipe.model.init_dense = given.init_dense;
  if (recipe.distill.used()) recipe.distill.teacher = fs::absolute(recipe.distill.teacher).lexically_normal().string();
  if (!recipe.train.threads) {
    recipe.train.threads = std::max(1, usable_cores() / std::max(1, request.local_ranks));
  }
  if (const auto tokenizer = tokenizer_file(recipe.data)) recipe.data.tokenizer = fs::absolute(*tokenizer).string();
  for (auto* sources : {&recipe.data.sources, &recipe.data.validation}) {
    for (spec::DataSource& source : *sources) source.path = fs::absolute(source.path).lexically_normal().string();
  }
  return recipe;
}

void RunWriter::open(std::int64_t from_step, std::int64_t last) {
  const checkpoint::RunFolder& folder = parts_.folder;
  const spec::Recipe& recipe = parts_.recipe;
  const bool resume = parts_.request.resume;
  groups_ = parts_.trainer.engine().account().groups;
  rank_log_ =
      std::make_unique<observe::RankLog>(folder.path, parts_.rank.rank(), parts_.rank.ranks(),
                                         resume ? std::optional(std::max<std::int64_t>(from_step, 0)) : std::nullopt);
  if (!writes()) return;
  const std::int64_t step = parts_.trainer.position().step;
  const auto changes = resume ? checkpoint::recipe_changes(folder, recipe) : std::vector<std::string>{};
  for (const std::string& change : changes) log_info("the recipe has changed: {}", change);
  log_ = std::make_unique<observe::RunLog>(folder.path,
                                           resume ? std::optional(std::max<std::int64_t>(from_step, 0)) : std::nullopt);
  parts_.saving.log_to(*log_);
  parts_.timeline.tell(resume ? "resumed" : "start",
                       {{"step", step}, {"ranks", parts_.rank.ranks()}, {"pid", ::getpid()}});
  write_text_file(folder.recipe(), config::to_toml(recipe));
  if (!fs::exists(folder.costs())) cost::write_cost_table(parts_.rank.options().costs, folder.costs());
  if (const auto tokenizer = tokenizer_file(recipe.data); tokenizer && !fs::exists(folder.tokenizer())) {
    fs::copy_file(*tokenizer, folder.tokenizer());
    for (const std::string_view name : kTokenizerFiles) {
      if (fs::exists(tokenizer->parent_path() / name))
        fs::copy_file(tokenizer->parent_path() / name, folder.path / name);
    }
  }
  keep_published_texts(recipe.model, folder);
  const auto names = spec::enum_names(std::type_identity<spec::Family>());
  const std::int64_t parameters = spec::count_parameters(parts_.trainer.shape()).total();
  const bool cpu = recipe.run.device == spec::DeviceKind::kCpu;
  const char* card = "cpu";
  std::uint64_t library = 0;
  if (!cpu) kernels::check_cuda(kernels::cuda().tuning_key(&card, &library), "asking for the card");
  const std::string family(name_in(names, parts_.trainer.shape().family));
  log_->event(
      resume ? "resumed" : "start",
      {{"step", step},
       {"steps", last},
       {"model", family},
       {"parameters", parameters},
       {"ranks", parts_.rank.ranks()},
       {"precision", name_in(spec::enum_names(std::type_identity<spec::Precision>()), recipe.precision.compute)},
       {"threads", *recipe.train.threads},
       {"device", card},
       {"changes", changes}});
  if (cpu) {
    mfu_.emplace(observe::MfuRun{.precision = recipe.precision.compute == spec::Precision::kBf16 ? "bf16" : "fp32",
                                 .threads = *recipe.train.threads,
                                 .local_ranks = parts_.request.local_ranks,
                                 .ranks = parts_.rank.ranks()});
  } else {
    mfu_.emplace(stated_peak(card, recipe.precision.compute), parts_.trainer.gpus());
  }
  introduce(last, family, parameters);
  progress_ = std::make_unique<Progress>("train", last, "step");
}

void RunWriter::introduce(std::int64_t last, const std::string& family, std::int64_t parameters) {
  const spec::Recipe& recipe = parts_.recipe;
  const int ranks = parts_.rank.ranks();
  log_info("model: {}: {} parameters", spec::shape_text(parts_.trainer.shape()), exact_count(parameters));
  log_info("{}: {} parameters, {}, {} a rank; {} of {} tokens; peak {}", family,
           short_count(static_cast<double>(parameters)), counted(static_cast<std::size_t>(ranks), "rank"),
           counted(static_cast<std::size_t>(*recipe.train.threads), "thread"), counted(last, "step"),
           exact_count(spec::batch_at(recipe.lr_schedule, recipe.batch, parts_.trainer.position().tokens)),
           mfu_->peak()                                   ? fmt::format("{:.0f} GFLOP/s", mfu_->peak()->flops / 1e9)
           : recipe.run.device == spec::DeviceKind::kCuda ? "of this GPU not known (--profile compares)"
                                                          : "unknown (`trireme doctor` measures it)");
  if (ranks > 1) log_info("layout: {}", layout::to_text(parts_.trainer.mesh()));
  if (const auto best = parts_.samples.best_loss()) log_info("the best possible loss of this task is {:.4f}", *best);
}

void RunWriter::event(std::string_view kind, observe::Json fields) {
  if (writes()) log_->event(kind, std::move(fields));
}

std::vector<observe::NamedQueue> RunWriter::take_queues() {
  std::vector<observe::NamedQueue> now;
  Trainer& trainer = parts_.trainer;
  if (const auto prefetch = trainer.prefetch_queue()) now.push_back({.name = "prefetch", .reading = *prefetch});
  now.push_back({.name = "works", .reading = parts_.rank.queue()});
  if (const auto receives = trainer.receives_queue()) now.push_back({.name = "receives", .reading = *receives});
  if (const auto updates = trainer.updates_queue()) now.push_back({.name = "updates", .reading = *updates});
  for (observe::NamedQueue& queue : trainer.other_queues()) now.push_back(std::move(queue));
  now.push_back({.name = "checkpoint", .reading = parts_.saving.queue()});
  for (observe::NamedQueue& queue : parts_.trainer.driver().queues()) now.push_back(std::move(queue));
  std::vector<observe::NamedQueue> since = now;
  for (observe::NamedQueue& queue : since) {
    const auto before = std::ranges::find(queues_, queue.name, &observe::NamedQueue::name);
    if (before != queues_.end()) queue.reading = queue.reading.since(before->reading);
  }
  queues_ = std::move(now);
  return since;
}

void RunWriter::tell_traffic(const std::function<void(std::string_view, double)>& tell) {
  std::map<std::string, double> sent;  // groups of the same axes are one: lanes, and copies by their first rank
  std::vector<comm::Group*> groups = groups_ == nullptr ? std::vector<comm::Group*>() : groups_->all();
  if (groups_ != nullptr) groups.push_back(&groups_->world());
  for (const comm::Group* group : groups) {
    const std::string axes = group->name().substr(0, group->name().find(' '));
    for (int i = 0; i < comm::kOps; ++i) {
      const auto op = static_cast<comm::Op>(i);
      const std::uint64_t bytes = group->counters(op).sent_bytes;
      if (bytes > 0) sent[fmt::format("comm/{}/{}_bytes", axes, name(op))] += static_cast<double>(bytes);
    }
  }
  for (const auto& [metric, bytes] : sent) tell(metric, bytes);
}

namespace {

/// For which the ranks with experts of a layer wait for the busiest of them in a step.
double cost_seconds(const nn::moe::LayerLoads& layer) {
  return (observe::max_over_mean(layer.ranks) - 1) * observe::mean_load(layer.ranks) * layer.row_s;
}

}  // namespace

void RunWriter::tell_metrics(const StepReport& report, const StepFigures& figures,
                             const std::vector<observe::NamedQueue>& queues) {
  std::vector<EventSink*> sinks{rank_log_.get()};
  if (parts_.request.trace != nullptr) sinks.push_back(parts_.request.trace);
  EventFanOut sink(std::move(sinks));
  const std::int64_t step = report.position.step;
  const auto tell = [&](std::string_view name, double value) {
    sink.metric({.name = name, .value = value, .step = step, .rank = parts_.rank.rank()});
  };
  const double seconds = report.seconds.value_or(figures.seconds);
  tell("step/seconds", seconds);
  tell("step/tokens_per_s", static_cast<double>(report.batch) / seconds);
  tell("step/compute_seconds", report.compute_s);
  tell("step/data_seconds", report.data_s);
  tell("step/exposed_comm_seconds", report.comm_s);
  if (parts_.recipe.train.work_stealing) tell("step/stolen_micro_batches", static_cast<double>(report.stolen));
  tell("memory/peak_bytes", static_cast<double>(figures.own_memory));
  const device::MemoryPool& device = parts_.trainer.memory().device;
  for (std::size_t i = 0; i < device::kMemoryUses; ++i) {
    const auto use = static_cast<device::MemoryUse>(i);
    if (device.peak_of(use) == 0) continue;
    tell(fmt::format("memory/{}_bytes", device::name_of(use)), static_cast<double>(device.peak_of(use)));
  }
  tell_traffic(tell);
  if (!report.loads.empty()) {
    double expert = 0, rank = 0, cost_s = 0;
    for (const nn::moe::LayerLoads& layer : report.loads) {
      expert = std::max(expert, observe::max_over_mean(layer.counts));
      rank = std::max(rank, observe::max_over_mean(layer.ranks));
      cost_s += std::max(0.0, cost_seconds(layer));
    }
    tell("experts/max_over_mean", expert);  // of the worst layer
    tell("experts/busiest_rank_over_mean", rank);
    tell("experts/uneven_seconds", cost_s);  // over all layers
    if (report.experts_moved) tell("experts/moved_bytes", static_cast<double>(report.experts_moved->bytes));
  }
  for (const observe::NamedQueue& queue : queues) {
    tell(fmt::format("queue/{}_length", queue.name), queue.reading.length());
    tell(fmt::format("queue/{}_per_second", queue.name), queue.reading.rate());
    tell(fmt::format("queue/{}_wait_seconds", queue.name), queue.reading.wait());
    tell(fmt::format("queue/{}_blocked_seconds", queue.name), queue.reading.blocked);
  }
  if (const auto* compressed = parts_.trainer.engine().data_parallel().reducer().report()) {
    tell("compress/sent_bytes", compressed->sent_bytes);
    tell("compress/saved_bytes", compressed->dense_bytes - compressed->sent_bytes);
    tell("compress/rounds", static_cast<double>(compressed->rounds));
    tell("compress/seconds", compressed->seconds);
    tell("compress/kernel_seconds", compressed->kernel_seconds);
    tell("compress/relative_error", compressed->relative_error);
    for (const auto& [name, error] : compressed->errors) tell(fmt::format("compress/error/{}", name), error);
    const spec::Recipe& recipe = parts_.recipe;
    if (recipe.compress.kind != spec::CompressKind::kNone && recipe.comm.transport == spec::Transport::kEmulated) {
      const plan::CompressTask task{
          .copies = recipe.compress.workers.value_or(parts_.trainer.mesh().size(nn::kDataAxis)),
          .compute_s = report.compute_s,
          .latency_s = std::chrono::duration<double>(recipe.emulated.latency).count()};
      const auto bandwidth = static_cast<double>(recipe.emulated.bandwidth);
      const plan::CompressPrice price = plan::price_compression(recipe, model_shape(recipe), task);
      // A dense step of the same computing is known by its bytes, which the emulated network takes as it says.
      predicted_gain_s_ += price.dense_step(task, bandwidth) - price.step(task, bandwidth);
      measured_gain_s_ += price.dense_step(task, bandwidth) - seconds;
      tell("compress/predicted_gain_seconds", predicted_gain_s_);
      tell("compress/measured_gain_seconds", measured_gain_s_);
    }
  }
  rank_log_->end_step(step);
}

namespace {

/// Every step where that is little to write; of large models a number of experts once in as many steps.
bool tells_loads(const StepReport& report) {
  constexpr std::size_t kEachStep = 1024;
  if (report.loads.empty()) return false;
  const std::size_t numbers = report.loads.size() * report.loads.front().counts.size();
  const auto every = static_cast<std::int64_t>((numbers + kEachStep - 1) / kEachStep);
  return report.position.step % every == 0;
}

}  // namespace

void RunWriter::step(const StepReport& report, const StepFigures& figures) {
  const std::vector<observe::NamedQueue> queues = take_queues();
  tell_metrics(report, figures, queues);
  if (!writes()) return;
  const std::int64_t step = report.position.step;
  observe::StepRecord record{.step = step,
                             .loss = report.loss,
                             .grad_norm = report.gradient_norm,
                             .lr = report.learning_rate,
                             .tokens = report.position.tokens,
                             .memory = figures.memory};
  if (report.losses.size() > 1) record.losses = report.losses;
  if (tells_loads(report)) {
    for (const nn::moe::LayerLoads& layer : report.loads) {
      record.experts.push_back({.layer = layer.layer,
                                .tokens = layer.counts,
                                .ranks = layer.ranks,
                                .cost_ms = std::max(0.0, 1e3 * cost_seconds(layer))});
    }
    record.expert_ranks = parts_.recipe.layout.ep;
  }
  if (const auto& moved = report.experts_moved) {
    record.experts_moved = moved;
    log_->event("experts moved", {{"step", step},
                                  {"experts", moved->experts},
                                  {"bytes", moved->bytes},
                                  {"seconds", moved->seconds},
                                  {"busiest_before", moved->busiest_before},
                                  {"busiest_after", moved->busiest_after}});
  }
  record.queues = queues;
  record.noise_scale = report.noise_scale;
  record.staleness = report.staleness;
  record.noise_scales = report.noise_scales;
  if (figures.hashes) {
    const std::uint64_t total = nn::total_hash(*figures.hashes);
    std::vector<std::pair<std::string, std::uint64_t>> tensors;
    for (const nn::HashShare& share : *figures.hashes) tensors.emplace_back(share.name, share.share);
    log_->hashes(step, total, tensors);
    record.hash = formats::hex(total);
  }
  if (!report.taken && !report.refused) {
    log_->event("skipped", {{"step", step}, {"why", "gradients overflowed fp16"}});
  }
  if (report.redone) log_->event("redone", {{"step", step}, {"why", "taken before the gradient norm was known"}});
  record.seconds = report.seconds.value_or(figures.seconds);
  record.tokens_per_s = static_cast<double>(report.batch) / record.seconds;
  record.mfu = mfu_->of(report.flops, record.seconds);
  record.breakdown = {.compute = report.compute_s, .data = report.data_s, .comm = report.comm_s};
  record.breakdown.overhead = std::max(0.0, record.seconds - report.compute_s - report.data_s - report.comm_s);
  log_->step(record);
  progress_->update(step, fmt::format("loss {:.4f}{}  {} tokens/s{}", report.loss, terms_text(record.losses),
                                      short_count(record.tokens_per_s),
                                      record.mfu ? fmt::format("  MFU {:.0f}%", *record.mfu * 100) : std::string()));
}

void RunWriter::cut_after(std::int64_t step) {
  rank_log_ = nullptr;
  rank_log_ = std::make_unique<observe::RankLog>(parts_.folder.path, parts_.rank.rank(), parts_.rank.ranks(), step);
  if (!writes()) return;
  for (const std::int64_t later : formats::list_checkpoints(parts_.folder.checkpoints())) {
    if (later > step) formats::remove_checkpoint(parts_.folder.checkpoints(), later);
  }
  log_ = nullptr;
  log_ = std::make_unique<observe::RunLog>(parts_.folder.path, step);
  parts_.saving.log_to(*log_);
}

}  // namespace trireme::train
