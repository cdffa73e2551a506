#include <fmt/format.h>

#include <map>
#include <tuple>

#include "trireme/base/trace_text.h"
#include "trireme/schedule/draw_parts.h"

namespace trireme::schedule {

namespace {

constexpr double kMicrosecondsPerUnit = 1000;

class Trace {
 public:
  explicit Trace(const Drawing& drawing) : drawing_(drawing), lanes_(boxes_of(drawing)) {}

  std::string write() {
    out_.event(R"("ph":"M","pid":0,"name":"process_name","args":{{"name":{}}})", TraceText::quoted(title_of(drawing_)));
    for (std::size_t rank = 0; rank < lanes_.size(); ++rank) {
      out_.event(R"("ph":"M","pid":0,"tid":{0},"name":"thread_name","args":{{"name":"rank {0}"}})", rank);
      for (const DrawnBox& box : lanes_[rank]) pass(rank, box);
      held(rank);
    }
    for (const auto& [key, sender] : forwards_) arrow(sender, forwards_, key, +1, "activation");
    for (const auto& [key, sender] : backwards_) arrow(sender, backwards_, key, -1, "gradient");
    return out_.finish();
  }

 private:
  struct Place {
    std::size_t rank;
    double start, end;
  };
  using Key = std::pair<int, int>;  // chunk, micro

  static double us(double time) { return time * kMicrosecondsPerUnit; }

  void pass(std::size_t rank, const DrawnBox& box) {
    const Key key{box.chunk, box.micro};
    for (int i = 0; i < box.micros && box.paint == Paint::kForward; ++i) {
      forwards_[{box.chunk, box.micro + i}] = {rank, box.start, box.end};
    }
    if (box.paint == Paint::kBackward || box.paint == Paint::kInput) backwards_[key] = {rank, box.start, box.end};
    std::string args;
    if (box.chunk >= 0) args += fmt::format("\"chunk\":{}", box.chunk);
    if (box.micro >= 0) args += fmt::format(",\"micro\":{}", box.micro);
    if (box.version) args += fmt::format(",\"weights\":{}", *box.version);
    const std::string name =
        box.micro < 0 ? std::string(name_of(box.paint)) : fmt::format("{} {}", name_of(box.paint), micros_of(box));
    if (box.end <= box.start) {
      out_.event(R"("ph":"i","s":"t","pid":0,"tid":{},"ts":{},"name":"{}")", rank, us(box.start), name);
    } else {
      out_.event(R"("ph":"X","pid":0,"tid":{},"ts":{},"dur":{},"name":"{}","cat":"{}","args":{{{}}})", rank,
                 us(box.start), us(box.end - box.start), name, name_of(box.paint), args);
    }
  }

  /// Micros in flight on the rank, as a counter.
  void held(std::size_t rank) {
    int count = 0;
    for (const DrawnBox& box : lanes_[rank]) {
      const bool begins = box.paint == Paint::kForward;
      const bool ends = box.paint == Paint::kBackward || box.paint == Paint::kWeight;
      if (!begins && !ends) continue;
      count += begins ? box.micros : -1;
      out_.event(R"("ph":"C","pid":0,"ts":{},"name":"rank {} holds","args":{{"micros":{}}})",
                 us(begins ? box.start : box.end), rank, count);
    }
  }

  /// From the end of a pass, just inside it as viewers want, to the start of the one that its result goes to, where
  /// that is on another rank.
  void arrow(const Place& from, const std::map<Key, Place>& passes, const Key& key, int step, const char* name) {
    const auto to = passes.find({key.first + step, key.second});
    if (to == passes.end() || to->second.rank == from.rank) return;
    ++arrows_;
    out_.event(R"("ph":"s","pid":0,"tid":{},"ts":{},"id":{},"name":"{}","cat":"message")", from.rank,
               us(from.end - (from.end - from.start) / 1000), arrows_, name);
    out_.event(R"("ph":"f","bp":"e","pid":0,"tid":{},"ts":{},"id":{},"name":"{}","cat":"message")", to->second.rank,
               us(to->second.start), arrows_, name);
  }

  const Drawing& drawing_;
  std::vector<std::vector<DrawnBox>> lanes_;
  std::map<Key, Place> forwards_, backwards_;
  int arrows_ = 0;
  TraceText out_{TraceText::Form::kWhole};
};

}  // namespace

std::string to_chrome_trace(const Drawing& drawing) { return Trace(drawing).write(); }

}  // namespace trireme::schedule
