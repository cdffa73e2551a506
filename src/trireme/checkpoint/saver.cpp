#include "trireme/checkpoint/saver.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/checkpoint/shared_copy.h"
#include "trireme/checkpoint/texts.h"
#include "trireme/formats/checkpoint_publish.h"
#include "trireme/layout/hash.h"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// From here on, this thread stands back behind those of its process that compute. What it starts inherits that.
void lower_priority() {
  const auto me = static_cast<id_t>(::syscall(SYS_gettid));
  ::setpriority(PRIO_PROCESS, me, ::getpriority(PRIO_PROCESS, me) + 10);
}

QueueMeter::Nanoseconds stamp_of(Clock::time_point time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

std::string why_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return known.message();
  } catch (const std::exception& other) {
    return other.what();
  }
}

}  // namespace

/// One save, from begin() until it is published.
struct Saver::Job {
  SaveRequest request;
  fs::path path;
  nlohmann::ordered_json values;
  std::vector<nn::HashShare> value_hashes;
  Clock::time_point begun = Clock::now();
  SaveOutcome outcome;

  std::mutex mutex;
  std::condition_variable changed;
  // Guarded by mutex. `copying`: the copy can be helped with.
  bool copying = false, copied = false, written = false, done = false;
  std::unique_ptr<SharedCopy> copy;
  // The writer's, to be read once it is written:
  std::string why;
  std::vector<formats::Checked> checks;
  std::vector<std::uint64_t> hashes;
  // Rank 0's, once collected:
  formats::CheckpointManifest manifest;

  void set(bool Job::*what) {
    const std::lock_guard lock(mutex);
    this->*what = true;
    changed.notify_all();
  }
  void wait(bool Job::*what) {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return this->*what; });
  }
};

Saver::Saver(const nn::State& state, comm::Group& group, SaverOptions options)
    : state_(state), group_(group), options_(std::move(options)) {
  make_plan();
}

void Saver::make_plan() {
  planned_changes_ = state_.placement_changes();
  std::vector<HeldTensor> mine = holdings_of(state_);
  std::vector<std::vector<HeldTensor>> all;
  for (const std::string& text : all_texts(holdings_text(mine), group_)) all.push_back(parse_holdings(text));
  plan_ = plan_save(all);
  part_ = part_of(plan_, static_cast<std::size_t>(group_.rank()));
  prefix_ = part_.prefix();
  layout_ = {};
  if (group_.rank() == 0) describe(plan_, layout_);
  // Of others, who writes something of which tensor is enough from here on.
  for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
    if (rank == static_cast<std::size_t>(group_.rank())) continue;
    for (SaveShare& share : plan_.ranks[rank]) share.runs = {};
  }
}

Saver::~Saver() {
  if (writer_.joinable()) writer_.join();
  if (publisher_.joinable()) publisher_.join();
}

/// What this rank's file is made of, in its order. `hosts` keeps copies of tensors that are on a device.
std::vector<formats::PieceOfMemory> Saver::pieces(std::vector<at::Tensor>& hosts) const {
  std::vector<formats::PieceOfMemory> list{{reinterpret_cast<const std::byte*>(prefix_.data()), prefix_.size()}};
  const auto& shares = plan_.ranks[static_cast<std::size_t>(group_.rank())];
  for (const std::size_t at : part_.order) {
    const SaveShare& share = shares[at];
    const at::Tensor host = state_.at(plan_.tensors[share.tensor].name).tensor.cpu();
    hosts.push_back(host);
    const auto* data = static_cast<const std::byte*>(host.const_data_ptr());
    const auto element = static_cast<std::size_t>(host.element_size());
    for (const layout::ContiguousRun& run : share.runs) {
      formats::append_piece(list, {data + static_cast<std::size_t>(run.local) * element,
                                   static_cast<std::uint64_t>(run.count) * element});
    }
  }
  return list;
}

/// Of what this rank writes; `hosts` in the order of its file. With an image of the file, of the image.
PartHash Saver::hash_of_part(const std::byte* image, const std::vector<at::Tensor>& hosts) const {
  std::vector<std::span<const std::byte>> data;
  for (std::size_t i = 0; i < part_.order.size(); ++i) {
    const formats::TensorInfo& info = part_.header.tensors[part_.header.by_offset[i]];
    if (image != nullptr) {
      data.emplace_back(image + part_.header.data_begin() + info.begin, info.bytes());
    } else {
      data.emplace_back(static_cast<const std::byte*>(hosts[i].const_data_ptr()), hosts[i].nbytes());
    }
  }
  return {plan_.ranks[static_cast<std::size_t>(group_.rank())], part_, std::move(data),
          image != nullptr ? PartHash::Lie::kInFile : PartHash::Lie::kInTensor};
}

/// [rank][share] to whole tensors: each element was counted once.
std::vector<nn::HashShare> Saver::add_up(const std::vector<std::vector<std::uint64_t>>& shares) const {
  std::vector<nn::HashShare> hashes;
  for (const formats::TensorSpec& tensor : plan_.tensors) hashes.push_back({tensor.name, 0});
  for (std::size_t rank = 0; rank < shares.size(); ++rank) {
    for (std::size_t i = 0; i < shares[rank].size(); ++i) {
      hashes[plan_.ranks[rank][i].tensor].share += shares[rank][i];
    }
  }
  return hashes;
}

void Saver::write_part_of(Job& job) {
  const auto begin = Clock::now();
  try {
    if (options_.background) lower_priority();
    std::vector<at::Tensor> hosts;
    auto list = pieces(hosts);
    const std::byte* image = nullptr;
    if (options_.on_phase) options_.on_phase(SavePhase::kCopy, job.request.step);
    if (options_.background) {
      job.copy = std::make_unique<SharedCopy>(staging_.data(), list);
      job.set(&Job::copying);
      {
        std::vector<std::jthread> helpers;
        for (int i = 1; i < options_.threads; ++i) helpers.emplace_back([&job] { job.copy->help(); });
        job.copy->finish();
      }
      image = staging_.data();
      list = {{image, part_.header.file_bytes()}};
      job.outcome.copy_s = seconds_since(begin);
      job.set(&Job::copied);
    }
    const auto writing = Clock::now();
    if (options_.on_phase) options_.on_phase(SavePhase::kWrite, job.request.step);
    PartHash hash = hash_of_part(image, hosts);
    if (!part_.order.empty()) {
      // A thread that writes waits for the disk most of the time: twice as many keep it busy.
      formats::PartOptions writing_options{.threads = 2 * options_.threads, .before_write = options_.before_write};
      if (options_.hash)
        writing_options.summed = [&](std::uint64_t from, std::uint64_t until) { hash.add(from, until); };
      job.checks = formats::write_part(formats::unfinished(job.path) / formats::part_name(group_.rank(), group_.size()),
                                       list, writing_options);
    }
    if (options_.hash) job.hashes = hash.hashes();
    job.outcome.write_s = seconds_since(writing);
    if (options_.on_phase) options_.on_phase(SavePhase::kWritten, job.request.step);
  } catch (...) {
    job.why = why_of(std::current_exception());
  }
  job.set(&Job::copying);
  job.set(&Job::copied);
  job.set(&Job::written);
}

void Saver::begin(const SaveRequest& request) {
  const auto start = Clock::now();
  if (busy_) collect();
  take_published(/*wait=*/false);  // one that nobody asked about since it was over: the meter knows its end now
  if (planned_changes_ != state_.placement_changes()) make_plan();
  job_ = std::make_unique<Job>();
  Job& job = *job_;
  job.begun = start;
  meter_.arrive(stamp_of(start));
  job.request = request;
  job.path = request.folder / (request.name.empty() ? formats::checkpoint_name(request.step) : request.name);
  job.values = nlohmann::ordered_json::object();
  for (const nn::StateValue& value : state_.values()) job.values[value.name] = value.get();
  job.value_hashes = nn::value_hashes(state_);
  job.outcome.step = request.step;
  job.outcome.path = job.path;
  std::error_code error;
  fs::create_directories(formats::unfinished(job.path), error);  // by whoever comes first
  if (options_.background && staging_.size() < part_.header.file_bytes()) {
    staging_ = formats::AlignedMemory(part_.header.file_bytes());
  }
  busy_ = true;
  if (options_.background) {
    writer_ = std::thread([this, &job] { write_part_of(job); });
  } else {
    write_part_of(job);
  }
  note_blocked(job, start);
}

/// The training thread stood still since `start`.
void Saver::note_blocked(Job& job, Clock::time_point start) {
  const Clock::duration blocked = Clock::now() - start;
  job.outcome.blocked_s += std::chrono::duration<double>(blocked).count();
  meter_.block(std::chrono::nanoseconds(blocked).count());
}

void Saver::wait_copied() {
  if (!job_) return;
  const auto start = Clock::now();
  job_->wait(&Job::copying);
  if (job_->copy) job_->copy->help();  // rather than stand by
  job_->wait(&Job::copied);
  note_blocked(*job_, start);
}

bool Saver::written() const {
  if (!job_) return true;
  const std::lock_guard lock(job_->mutex);
  return job_->written;
}

bool Saver::collect() {
  if (!busy_) return true;
  const auto start = Clock::now();
  Job& job = *job_;
  job.wait(&Job::written);
  if (writer_.joinable()) writer_.join();
  nlohmann::json mine{{"why", job.why}, {"blocked", job.outcome.blocked_s}};
  std::string sums;
  for (const formats::Checked& check : job.checks) sums += formats::hex(check.sum);
  mine["sums"] = std::move(sums);
  mine["hashes"] = job.hashes;
  std::string why;
  std::vector<std::vector<std::uint64_t>> hashes;
  const auto texts = all_texts(mine.dump(), group_);
  for (std::size_t rank = 0, part = 0; rank < texts.size(); ++rank) {
    const nlohmann::json theirs = nlohmann::json::parse(texts[rank]);
    if (const auto reason = theirs.at("why").get<std::string>(); !reason.empty() && why.empty()) {
      why = texts.size() == 1 ? reason : fmt::format("rank {}: {}", rank, reason);
    }
    job.outcome.blocked_s = std::max(job.outcome.blocked_s, theirs.at("blocked").get<double>());
    if (group_.rank() != 0 || !why.empty() || plan_.ranks[rank].empty()) continue;
    hashes.resize(texts.size());
    hashes[rank] = theirs.at("hashes").get<std::vector<std::uint64_t>>();
    if (part == 0) job.manifest = layout_;
    formats::StoredPart& stored = job.manifest.parts[part++];
    const std::string hexes = theirs.at("sums").get<std::string>();
    for (std::uint64_t begin = 0, at = 0; begin < stored.bytes; begin += formats::kCheckedBlock, at += 16) {
      stored.checks.push_back({.begin = begin,
                               .end = std::min(begin + formats::kCheckedBlock, stored.bytes),
                               .sum = formats::parse_hex(std::string_view(hexes).substr(at, 16)).value()});
    }
  }
  busy_ = false;
  if (group_.rank() != 0) {
    note_blocked(job, start);
    meter_.depart(stamp_of(job.begun));
    job_.reset();
    return why.empty();
  }
  take_published(/*wait=*/true);
  publishing_ = std::move(job_);
  publishing_->why = why;
  if (why.empty() && options_.hash) {
    auto all = add_up(hashes);
    all.insert(all.end(), job.value_hashes.begin(), job.value_hashes.end());
    job.manifest.hash = nn::total_hash(all);
  }
  note_blocked(job, start);
  if (options_.background) {
    publisher_ = std::thread([this, &job] { publish_job(job); });
  } else {
    publish_job(job);
  }
  return why.empty();
}

void Saver::publish_job(Job& job) {
  const auto start = Clock::now();
  std::error_code error;
  if (!job.why.empty()) {
    fs::remove_all(formats::unfinished(job.path), error);
  } else {
    try {
      if (options_.on_phase) options_.on_phase(SavePhase::kPublish, job.request.step);
      job.manifest.step = job.request.step;
      job.manifest.tokens = job.request.tokens;
      job.manifest.metric = job.request.metric;
      job.manifest.values = job.values;
      job.outcome.bytes = job.manifest.bytes();
      formats::publish(job.path, std::move(job.manifest), job.request.files);
      if (options_.on_phase) options_.on_phase(SavePhase::kPublished, job.request.step);
      if (options_.published) options_.published(job.path);
    } catch (...) {
      job.why = why_of(std::current_exception());
      fs::remove_all(formats::unfinished(job.path), error);
    }
  }
  job.outcome.publish_s = seconds_since(start);
  job.outcome.seconds = seconds_since(job.begun);
  job.outcome.why = job.why;
  job.set(&Job::done);
}

/// What became of the one that is being published, once that is known.
void Saver::take_published(bool wait) {
  if (!publishing_) return;
  if (wait) {
    publishing_->wait(&Job::done);
  } else {
    const std::lock_guard lock(publishing_->mutex);
    if (!publishing_->done) return;
  }
  if (publisher_.joinable()) publisher_.join();
  const QueueMeter::Nanoseconds begun = stamp_of(publishing_->begun);
  meter_.depart(begun, begun + static_cast<QueueMeter::Nanoseconds>(publishing_->outcome.seconds * 1e9));
  outcomes_.push_back(std::move(publishing_->outcome));
  publishing_.reset();
}

std::optional<SaveOutcome> Saver::outcome(bool wait) {
  take_published(wait);
  if (outcomes_.empty()) return std::nullopt;
  SaveOutcome first = std::move(outcomes_.front());
  outcomes_.pop_front();
  return first;
}

std::optional<SaveOutcome> Saver::save(const SaveRequest& request) {
  const bool background = std::exchange(options_.background, false);
  begin(request);
  collect();
  options_.background = background;
  return outcome(/*wait=*/true);
}

std::vector<nn::HashShare> Saver::hashes() {
  if (planned_changes_ != state_.placement_changes()) {
    if (busy_) collect();  // what is being written goes by the plan
    make_plan();
  }
  // One tensor after the other: of those on a device, one copy at a time.
  std::vector<std::uint64_t> mine;
  for (const SaveShare& share : plan_.ranks[static_cast<std::size_t>(group_.rank())]) {
    const at::Tensor host = state_.at(plan_.tensors[share.tensor].name).tensor.cpu();
    mine.push_back(layout::tensor_hash(share.runs,
                                       {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()},
                                       static_cast<std::size_t>(host.element_size())));
  }
  const auto texts = all_texts(nlohmann::json(mine).dump(), group_);
  if (group_.rank() != 0) return {};
  std::vector<std::vector<std::uint64_t>> shares;
  shares.reserve(texts.size());
  for (const std::string& text : texts) shares.push_back(nlohmann::json::parse(text).get<std::vector<std::uint64_t>>());
  auto all = add_up(shares);
  const auto values = nn::value_hashes(state_);
  all.insert(all.end(), values.begin(), values.end());
  return all;
}

}  // namespace trireme::checkpoint
