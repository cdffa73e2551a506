#include "trireme/serve/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

#include "trireme/base/error.h"

namespace trireme::serve {

std::string to_text(const StepPlan& plan) {
  std::string out;
  for (const PlannedSequence& sequence : plan.sequences) {
    fmt::format_to(std::back_inserter(out), "{}{}:{}+{}", out.empty() ? "" : " ", sequence.id, sequence.context_len,
                   sequence.query_len);
    if (sequence.drafts > 0) fmt::format_to(std::back_inserter(out), "d{}", sequence.drafts);
    if (sequence.samples) out += 's';
  }
  const auto list = [&](const char* what, const std::vector<RequestId>& ids) {
    if (!ids.empty()) fmt::format_to(std::back_inserter(out), " {} {}", what, fmt::join(ids, ","));
  };
  list("admits", plan.admitted);
  list("preempts", plan.preempted);
  const auto copies = [&](const char* what, const std::vector<BlockCopy>& of) {
    for (const BlockCopy& copy : of) {
      fmt::format_to(std::back_inserter(out), " {} {}:{}+{}", what, copy.id, copy.first, copy.blocks.size());
    }
  };
  copies("offloads", plan.offloaded);
  copies("restores", plan.restored);
  return out;
}

Scheduler::Scheduler(SchedulerOptions options)
    : options_(std::move(options)),
      pool_({.groups = options_.groups, .prefix_cache = options_.prefix_cache, .hash_bits = options_.hash_bits}) {
  TRIREME_CHECK(options_.max_batch_tokens > 0 && options_.max_sequences > 0 && options_.prefill_chunk > 0,
                "a step of {} tokens, {} sequences, chunks of {}", options_.max_batch_tokens, options_.max_sequences,
                options_.prefill_chunk);
  const bool windows = std::ranges::any_of(options_.groups, [](const auto& group) { return group.window > 0; });
  if (options_.offload_blocks > 0 && (windows || options_.groups.size() != 1)) {
    throw ConfigError("the KV cache of layers with sliding windows is not offloaded", "leave the offload out");
  }
}

std::optional<std::string> Scheduler::why_never(std::int64_t prompt_len, std::int64_t max_new_tokens) const {
  for (std::size_t group = 0; group < pool_.groups(); ++group) {
    const std::int64_t need = pool_.most_blocks(group, prompt_len + max_new_tokens, options_.prefill_chunk);
    const std::int64_t all = options_.groups[group].num_blocks;
    if (need <= all) continue;
    return fmt::format("{} tokens of prompt and {} new ones take {} blocks of the KV cache, which has {}", prompt_len,
                       max_new_tokens, need, all);
  }
  return std::nullopt;
}

std::optional<std::string> Scheduler::add(SequenceRequest request) {
  TRIREME_CHECK(!arrivals_.contains(request.id), "request {} is there already", request.id);
  TRIREME_CHECK(!request.prompt.empty() && request.max_new_tokens > 0, "request {} has {} tokens and asks for {}",
                request.id, request.prompt.size(), request.max_new_tokens);
  const auto prompt_len = static_cast<std::int64_t>(request.prompt.size());
  if (auto why = why_never(prompt_len, request.max_new_tokens)) return why;
  const std::uint64_t arrival = next_arrival_++;
  arrivals_.emplace(request.id, arrival);
  requests_.emplace(arrival, Sequence{.tokens = std::move(request.prompt),
                                      .salt = std::move(request.salt),
                                      .prompt_len = prompt_len,
                                      .max_len = prompt_len + request.max_new_tokens,
                                      .id = request.id});
  return std::nullopt;
}

const Scheduler::Sequence& Scheduler::at(RequestId id) const {
  const auto arrival = arrivals_.find(id);
  TRIREME_CHECK(arrival != arrivals_.end(), "there is no request {}", id);
  return requests_.at(arrival->second);
}

Scheduler::Progress Scheduler::progress(RequestId id) const { return at(id).progress; }

void Scheduler::end(std::uint64_t arrival, Sequence& sequence) {
  if (sequence.is_running) {
    pool_.release(sequence.blocks);
    --running_;
  }
  offloaded_blocks_ -= nn::blocks_for(sequence.offloaded);
  arrivals_.erase(sequence.id);
  requests_.erase(arrival);
}

bool Scheduler::cancel(RequestId id) {
  const auto found = arrivals_.find(id);
  if (found == arrivals_.end()) return false;
  const std::uint64_t arrival = found->second;
  end(arrival, requests_.at(arrival));
  return true;
}

void Scheduler::propose(RequestId id, std::vector<std::int64_t> drafts) {
  const auto found = arrivals_.find(id);
  if (found != arrivals_.end()) requests_.at(found->second).drafts = std::move(drafts);
}

Scheduler::Sequence* Scheduler::youngest_after(std::uint64_t arrival) {
  for (auto at = requests_.rbegin(); at != requests_.rend() && at->first > arrival; ++at) {
    if (at->second.is_running) return &at->second;
  }
  return nullptr;
}

void Scheduler::drop_planned_drafts(Sequence& sequence) {
  sequence.tokens.resize(static_cast<std::size_t>(sequence.known()));
  sequence.planned_drafts = 0;
}

void Scheduler::preempt(Sequence& sequence, StepPlan& plan) {
  const auto planned = std::ranges::find(plan.sequences, sequence.id, &PlannedSequence::id);
  if (planned != plan.sequences.end()) {
    plan.tokens -= planned->query_len;
    plan.sequences.erase(planned);
  }
  drop_planned_drafts(sequence);
  offload(sequence, plan);
  pool_.release(sequence.blocks);
  sequence.computed = 0;
  sequence.is_running = false;
  --running_;
  ++sequence.progress.preemptions;
  ++totals_.preemptions;
  plan.preempted.push_back(sequence.id);
}

/// What it has goes to other memory, while there is room.
void Scheduler::offload(Sequence& sequence, StepPlan& plan) {
  // Admitted by this very plan: what was to be copied back is there still.
  const bool there = std::erase_if(plan.restored, [&](const BlockCopy& copy) { return copy.id == sequence.id; }) > 0;
  const std::int64_t blocks = nn::blocks_for(sequence.computed);
  if (blocks == 0 || offloaded_blocks_ + blocks > options_.offload_blocks) return;
  offloaded_blocks_ += blocks;
  sequence.offloaded = sequence.computed;
  if (there) return;
  const auto& table = sequence.blocks.tables[0].blocks;
  plan.offloaded.push_back({sequence.id, 0, {table.begin(), table.begin() + blocks}});
}

/// Gives the sequence blocks for `query_len` more tokens and a place in the plan. False where it was preempted itself.
bool Scheduler::place(std::uint64_t arrival, Sequence& sequence, std::int64_t query_len, StepPlan& plan) {
  while (!pool_.reserve(sequence.blocks, sequence.computed + query_len)) {
    // Drafts are a luxury: nobody gives up blocks for them.
    if (sequence.planned_drafts > 0) {
      query_len -= sequence.planned_drafts;
      drop_planned_drafts(sequence);
      continue;
    }
    Sequence* const victim = youngest_after(arrival);
    preempt(victim ? *victim : sequence, plan);
    if (!victim) return false;
  }
  plan.sequences.push_back(
      {.id = sequence.id,
       .context_len = sequence.computed,
       .query_len = query_len,
       .drafts = sequence.planned_drafts,
       .samples = sequence.computed + query_len == static_cast<std::int64_t>(sequence.tokens.size())});
  plan.tokens += query_len;
  return true;
}

/// Takes cached blocks of the sequence's prefix, if there is room for all that is known of it.
bool Scheduler::admit(Sequence& sequence, StepPlan& plan) {
  sequence.blocks = pool_.begin(sequence.salt);
  const std::int64_t cached = pool_.acquire(sequence.blocks, sequence.tokens);
  const std::int64_t length = std::min(sequence.known() + 1, sequence.max_len);
  if (!pool_.could_reserve(sequence.blocks, length, options_.prefill_chunk)) {
    pool_.release(sequence.blocks);
    return false;
  }
  sequence.computed = cached;
  if (sequence.offloaded > cached) {
    const bool room = pool_.reserve(sequence.blocks, sequence.offloaded);
    TRIREME_CHECK(room, "request {} was to have room for {} tokens", sequence.id, length);
    const auto& table = sequence.blocks.tables[0].blocks;
    const std::int64_t first = cached / nn::kKvBlockSize;
    plan.restored.push_back(
        {sequence.id, first, {table.begin() + first, table.begin() + nn::blocks_for(sequence.offloaded)}});
    totals_.restored_tokens += sequence.offloaded - cached;
    sequence.computed = sequence.offloaded;
  }
  offloaded_blocks_ -= nn::blocks_for(std::exchange(sequence.offloaded, 0));
  totals_.cached_tokens += cached;
  if (sequence.progress.preemptions == 0) sequence.progress.cached_tokens = cached;
  sequence.is_running = true;
  ++running_;
  return true;
}

StepPlan Scheduler::plan() {
  StepPlan plan;
  const auto budget = [&] { return options_.max_batch_tokens - plan.tokens; };
  const auto full = [&] {
    return budget() <= 0 || static_cast<std::int64_t>(plan.sequences.size()) >= options_.max_sequences;
  };
  const auto left = [](const Sequence& sequence) { return sequence.known() - sequence.computed; };
  for (auto& [arrival, sequence] : requests_) drop_planned_drafts(sequence);

  std::int64_t decodes = 0;  // that will want one token each
  for (const auto& [arrival, sequence] : requests_) decodes += sequence.is_running && left(sequence) == 1;
  // However many decode, the oldest gets on: nobody starves behind those that came later.
  const auto oldest = requests_.begin();
  const bool oldest_fills = oldest != requests_.end() && oldest->second.is_running && left(oldest->second) > 1;
  if (oldest_fills) {
    place(oldest->first, oldest->second,
          std::min({left(oldest->second), options_.prefill_chunk, std::max<std::int64_t>(1, budget() - decodes)}),
          plan);
  }
  for (auto& [arrival, sequence] : requests_) {
    if (!sequence.is_running || left(sequence) != 1) continue;
    if (full()) break;
    --decodes;
    const auto most = std::min({static_cast<std::int64_t>(sequence.drafts.size()), budget() - 1 - decodes,
                                sequence.max_len - sequence.known() - 1, options_.prefill_chunk - 1});
    if (most > 0) {
      sequence.tokens.insert(sequence.tokens.end(), sequence.drafts.begin(), sequence.drafts.begin() + most);
      sequence.planned_drafts = most;
    }
    place(arrival, sequence, 1 + sequence.planned_drafts, plan);
  }
  for (auto& [arrival, sequence] : requests_) {
    if (!sequence.is_running || left(sequence) <= 1 || (oldest_fills && arrival == oldest->first)) continue;
    if (full()) break;
    place(arrival, sequence, std::min({left(sequence), options_.prefill_chunk, budget()}), plan);
  }
  // Whoever was preempted in this step waits for the next: its blocks were needed.
  for (auto& [arrival, sequence] : requests_) {
    if (sequence.is_running) continue;
    if (!plan.preempted.empty() || full() || running_ >= options_.max_sequences || !admit(sequence, plan)) break;
    plan.admitted.push_back(sequence.id);
    place(arrival, sequence, std::min({left(sequence), options_.prefill_chunk, budget()}), plan);
  }
  return plan;
}

std::vector<RequestId> Scheduler::complete(const StepPlan& plan, std::span<const StepResult> results) {
  TRIREME_CHECK(results.size() == plan.sequences.size(), "{} results for {} sequences", results.size(),
                plan.sequences.size());
  std::vector<RequestId> ended;
  ++totals_.steps;
  for (std::size_t i = 0; i < results.size(); ++i) {
    const PlannedSequence& planned = plan.sequences[i];
    const auto found = arrivals_.find(planned.id);
    if (found == arrivals_.end()) continue;
    const std::uint64_t arrival = found->second;
    Sequence& sequence = requests_.at(arrival);
    drop_planned_drafts(sequence);
    sequence.drafts.clear();
    const bool decode =
        planned.samples && planned.query_len == 1 + planned.drafts && planned.context_len >= sequence.prompt_len;
    (decode ? totals_.decode_tokens : totals_.prefill_tokens) += planned.query_len;
    bool over = false;
    std::int64_t accepted = 0;
    if (planned.samples) {
      const StepResult& result = results[i];
      const auto added = static_cast<std::int64_t>(result.tokens.size());
      TRIREME_CHECK(added >= 1 && added <= 1 + planned.drafts, "{} tokens for a sequence with {} drafts", added,
                    planned.drafts);
      TRIREME_CHECK(sequence.known() + added <= sequence.max_len, "request {} has more tokens than it asked for",
                    planned.id);
      accepted = added - 1;
      totals_.drafts += planned.drafts;
      totals_.accepted_drafts += accepted;
      sequence.tokens.insert(sequence.tokens.end(), result.tokens.begin(), result.tokens.end());
      sequence.progress.generated += added;
      over = result.ends || sequence.known() == sequence.max_len;
    }
    sequence.computed += planned.query_len - planned.drafts + accepted;
    pool_.commit(sequence.blocks, sequence.tokens, sequence.computed);
    pool_.trim(sequence.blocks, sequence.computed);
    if (!over) continue;
    ended.push_back(planned.id);
    end(arrival, sequence);
  }
  return ended;
}

void Scheduler::check() const {
  std::vector<const SequenceBlocks*> sequences;
  std::int64_t offloaded = 0;
  for (const auto& [arrival, sequence] : requests_) {
    TRIREME_CHECK(!sequence.is_running || sequence.offloaded == 0, "request {} runs and is offloaded", sequence.id);
    offloaded += nn::blocks_for(sequence.offloaded);
    if (sequence.is_running) sequences.push_back(&sequence.blocks);
  }
  TRIREME_CHECK(static_cast<std::int64_t>(sequences.size()) == running_, "{} sequences run, not {}", sequences.size(),
                running_);
  TRIREME_CHECK(offloaded == offloaded_blocks_ && offloaded <= options_.offload_blocks, "{} blocks offloaded, not {}",
                offloaded, offloaded_blocks_);
  pool_.check(sequences);
}

}  // namespace trireme::serve
