#include "trireme/comm/negotiation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "trireme/base/error.h"
#include "trireme/base/text.h"

namespace trireme::comm {
namespace {

class MessageWriter {
 public:
  template <typename Number>
  MessageWriter& number(Number value) {
    const auto wide = static_cast<std::int64_t>(value);
    const auto* from = reinterpret_cast<const std::byte*>(&wide);
    bytes_.insert(bytes_.end(), from, from + sizeof wide);
    return *this;
  }
  MessageWriter& text(const std::string& value) {
    number(value.size());
    const auto* from = reinterpret_cast<const std::byte*>(value.data());
    bytes_.insert(bytes_.end(), from, from + value.size());
    return *this;
  }
  MessageWriter& tensors(std::span<const ReadyTensor> list) {
    number(list.size());
    for (const ReadyTensor& one : list) text(one.name).number(static_cast<int>(one.type)).number(one.count);
    return *this;
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : left_(bytes) {}
  std::int64_t number() {
    std::int64_t value = 0;
    std::memcpy(&value, next(sizeof value).data(), sizeof value);
    return value;
  }
  std::string text() {
    const auto from = next(static_cast<std::size_t>(number()));
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }
  std::vector<ReadyTensor> tensors() {
    std::vector<ReadyTensor> list(static_cast<std::size_t>(number()));
    for (ReadyTensor& one : list) {
      one.name = text();
      one.type = static_cast<DType>(number());
      one.count = static_cast<std::size_t>(number());
    }
    return list;
  }

 private:
  std::span<const std::byte> next(std::size_t size) {
    TRIREME_CHECK(size <= left_.size(), "a message of a negotiation ends too early");
    const auto part = left_.first(size);
    left_ = left_.subspan(size);
    return part;
  }
  std::span<const std::byte> left_;
};

std::string described(const ReadyTensor& tensor) {
  return fmt::format("{} elements of {}", tensor.count, name(tensor.type));
}

/// "rank 2" or "ranks 2 and 5": where `told` is `wanted`.
std::string ranks_where(const std::vector<bool>& told, bool wanted) {
  std::vector<std::string> ranks;
  for (std::size_t rank = 0; rank < told.size(); ++rank) {
    if (told[rank] == wanted) ranks.push_back(fmt::format("{}", rank));
  }
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", listed(ranks));
}

}  // namespace

std::vector<std::byte> to_bytes(const ReadyReport& report) {
  return MessageWriter().tensors(report.ready).number(report.stops).take();
}

std::vector<std::byte> to_bytes(const Agreement& agreement) {
  MessageWriter out;
  out.tensors(agreement.sums).number(agreement.refused.size());
  for (const Agreement::Refused& one : agreement.refused) out.text(one.name).text(one.why);
  return out.number(agreement.forget)
      .number(agreement.stop)
      .number(agreement.fusion_bytes)
      .number(agreement.cycle.count())
      .take();
}

ReadyReport report_from(std::span<const std::byte> bytes) {
  MessageReader in(bytes);
  ReadyReport report;
  report.ready = in.tensors();
  report.stops = in.number() != 0;
  return report;
}

Agreement agreement_from(std::span<const std::byte> bytes) {
  MessageReader in(bytes);
  Agreement agreement;
  agreement.sums = in.tensors();
  agreement.refused.resize(static_cast<std::size_t>(in.number()));
  for (Agreement::Refused& one : agreement.refused) {
    one.name = in.text();
    one.why = in.text();
  }
  agreement.forget = in.number() != 0;
  agreement.stop = in.number() != 0;
  agreement.fusion_bytes = static_cast<std::size_t>(in.number());
  agreement.cycle = std::chrono::nanoseconds(in.number());
  return agreement;
}

std::vector<std::vector<std::size_t>> fuse(std::span<const ReadyTensor> tensors, std::size_t fusion_bytes) {
  std::vector<std::vector<std::size_t>> groups;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool joins = !groups.empty() && tensors[groups.back().front()].type == tensors[i].type &&
                       bytes + tensors[i].bytes() <= fusion_bytes;
    if (!joins) {
      groups.emplace_back();
      bytes = 0;
    }
    groups.back().push_back(i);
    bytes += tensors[i].bytes();
  }
  return groups;
}

void Coordinator::report(int rank, const ReadyReport& report, Clock::time_point now) {
  const auto at = static_cast<std::size_t>(rank);
  stopped_[at] = report.stops;
  for (const ReadyTensor& tensor : report.ready) {
    const auto [found, fresh] = entries_.try_emplace(tensor.name);
    Entry& entry = found->second;
    if (fresh) entry = {.tensor = tensor, .first = rank, .told = std::vector<bool>(stopped_.size()), .since = now};
    TRIREME_CHECK(!entry.told[at], "rank {} reported {} twice", rank, tensor.name);
    entry.told[at] = true;
    if (tensor != entry.tensor && entry.mismatch.empty()) {
      entry.mismatch =
          fmt::format("rank {} has {}, rank {} has {}", entry.first, described(entry.tensor), rank, described(tensor));
    }
    if (std::ranges::all_of(entry.told, [](bool told) { return told; })) complete_.push_back(tensor.name);
  }
}

Agreement Coordinator::agree() {
  Agreement agreement;
  for (const std::string& name : complete_) {
    const auto found = entries_.find(name);
    if (found->second.mismatch.empty()) {
      agreement.sums.push_back(found->second.tensor);
    } else {
      agreement.refused.push_back({name, found->second.mismatch});
    }
    entries_.erase(found);
  }
  complete_.clear();
  agreement.stop = entries_.empty() && std::ranges::all_of(stopped_, [](bool stopped) { return stopped; });
  return agreement;
}

std::vector<std::string> Coordinator::stalled(Clock::time_point now, std::chrono::nanoseconds after) const {
  std::vector<std::string> lines;
  for (const auto& [name, entry] : entries_) {
    if (now - entry.since < after) continue;
    lines.push_back(fmt::format("'{}' has been ready for {} s on {}, but not on {}", name,
                                std::chrono::duration_cast<std::chrono::seconds>(now - entry.since).count(),
                                ranks_where(entry.told, true), ranks_where(entry.told, false)));
  }
  return lines;
}

bool CycleTuner::score(double bytes, double seconds) {
  if (done_) return false;
  rates_.push_back(seconds > 0 ? bytes / seconds : 0);
  if (static_cast<int>(rates_.size()) < samples_) return false;
  std::ranges::sort(rates_);
  const double median = rates_[rates_.size() / 2];
  rates_.clear();
  if (median > best_rate_) best_rate_ = median, best_ = at_;
  const std::size_t before = at_;
  done_ = at_ + 1 == settings_.size();
  at_ = done_ ? best_ : at_ + 1;
  return at_ != before;
}

std::vector<CycleTuner::Setting> usual_settings() {
  using namespace std::chrono_literals;
  std::vector<CycleTuner::Setting> settings;
  for (const std::size_t mebibytes : {1, 4, 16, 64}) {
    for (const std::chrono::nanoseconds cycle : {500us, 1000us, 2500us, 5000us})
      settings.push_back({mebibytes << 20, cycle});
  }
  return settings;
}

}  // namespace trireme::comm
