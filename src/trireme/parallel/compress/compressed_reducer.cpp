#include "trireme/parallel/compress/compressed_reducer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/layout/reduction.h"

namespace trireme::parallel {

bool is_compressed(const nn::Param& param, const spec::CompressConfig& config) {
  return param.placement.shape.size() >= 2 && param.elements() >= config.min_elements;
}

int shard_of(const MeshGroups& groups, const DataParallelOptions& options, const nn::Param& param) {
  const layout::Mesh& mesh = groups.mesh();
  const layout::AxisNames within = layout::subtract(mesh, mesh.wide_axes(), options.data);
  return mesh.index_in_group(groups.rank(), layout::unite(mesh, within, layout::split_axes(mesh, param.placement)));
}

bool is_first_of_copies(const MeshGroups& groups, const DataParallelOptions& options, const nn::Param& param) {
  const layout::Mesh& mesh = groups.mesh();
  const layout::AxisNames split = layout::split_axes(mesh, param.placement);
  return layout::is_first_copy(mesh, groups.rank(), layout::subtract(mesh, options.data, split));
}

double squared(const at::Tensor& tensor) {
  const double norm = at::linalg_vector_norm(tensor, 2, {}, false, at::kDouble).item<double>();
  return norm * norm;
}

at::Tensor squares_of(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor, 2, {}, false, at::kDouble).square_();
}

CompressedReducer::CompressedReducer(const ReducerParts& parts)
    : options_(parts.options), plan_(parts.plan), groups_(parts.groups), dense_(make_dense_reducer(parts)) {
  TRIREME_CHECK(options_.zero <= 1 && !options_.offload && !options_.reduce_bf16,
                "ZeRO {} or offload with compression is refused by spec/rules", options_.zero);
  make_sets();
  for (Bucket& bucket : plan_.buckets) {
    if (!bucket.trainable) continue;
    CopySet& set = set_of(bucket);
    const int copies = set.exchange.copies();
    for (BucketMember& member : bucket.members) {
      const std::vector<std::int64_t> shape = nn::local_shape(member.param->placement);
      const std::int64_t elements = layout::local_elements(member.param->placement);
      // What no other rank has a copy of is not exchanged at all.
      const bool alone = copies == 1 && sets_.front().exchange.copies() > 1;
      if (alone || !is_compressed(*member.param, config()) || is_replicated(*member.param) || elements == 0) {
        set.rest.emplace_back(&bucket, &member);
        continue;
      }
      // Of experts the rows of all of them.
      const std::int64_t rows = shape.size() == 3 ? shape[0] * shape[1] : shape.front();
      terms_.push_back({.param = member.param,
                        .bucket = &bucket,
                        .member = &member,
                        .rows = rows,
                        .columns = elements / rows,
                        .copies = copies});
    }
  }
  const auto place = [&](const Term& term) {
    return std::pair(&set_of(*term.bucket), std::string_view(term.param->name));
  };
  std::ranges::sort(terms_, {}, place);
  for (std::size_t i = 0; i < terms_.size(); ++i) terms_[i].number = i;
  for (CopySet& set : sets_) {
    std::ranges::sort(set.rest, {}, [](const auto& entry) { return entry.second->param->name; });
    const auto of_set =
        std::ranges::equal_range(terms_, &set, {}, [&](const Term& term) { return &set_of(*term.bucket); });
    set.begin = static_cast<std::size_t>(of_set.begin() - terms_.begin());
    set.end = static_cast<std::size_t>(of_set.end() - terms_.begin());
  }
}

/// One for each set of axes along which some bucket's copies lie: those of the options as far as the bucket is summed
/// along them.
void CompressedReducer::make_sets() {
  const layout::Mesh& mesh = groups_.mesh();
  std::vector<layout::AxisNames> copies{options_.copies}, wanted{options_.copies};
  for (const Bucket& bucket : plan_.buckets) {
    const layout::AxisNames axes = layout::intersect(mesh, options_.copies, bucket.axes);
    wanted.push_back(layout::subtract(mesh, bucket.axes, options_.copies));
    if (bucket.trainable && std::ranges::find(copies, axes) == copies.end()) copies.push_back(axes);
  }
  std::ranges::sort(copies.begin() + 1, copies.end());
  wanted.insert(wanted.end(), copies.begin(), copies.end());
  groups_.agree_on(wanted);
  for (const layout::AxisNames& axes : copies)
    sets_.push_back({.axes = axes, .exchange = CopyExchange(groups_.along(axes))});
  for (const Bucket& bucket : plan_.buckets)
    inside_.push_back(groups_.along(layout::subtract(mesh, bucket.axes, options_.copies)));
  exchange_ = &sets_.front().exchange;
}

const CompressedReducer::CopySet& CompressedReducer::set_of(const Bucket& bucket) const {
  const layout::AxisNames axes = layout::intersect(groups_.mesh(), options_.copies, bucket.axes);
  return *std::ranges::find(sets_, axes, &CopySet::axes);
}

CompressedReducer::CopySet& CompressedReducer::set_of(const Bucket& bucket) {
  return const_cast<CopySet&>(std::as_const(*this).set_of(bucket));
}

comm::Group* CompressedReducer::inside_of(const Bucket& bucket) const {
  return inside_[static_cast<std::size_t>(&bucket - plan_.buckets.data())];
}

/// Ranks of one copy of the model that all hold a parameter would each compress it among others, differently, and part.
bool CompressedReducer::is_replicated(const nn::Param& param) const {
  const layout::Mesh& mesh = groups_.mesh();
  const layout::AxisNames apart =
      layout::unite(mesh, layout::split_axes(mesh, param.placement), param.placement.absent_axes);
  return !layout::subtract(mesh, layout::subtract(mesh, mesh.wide_axes(), options_.data), apart).empty();
}

std::string CompressedReducer::description() const {
  std::string text = "mean-scaled gradient";
  const int inside = groups_.mesh().group_size(layout::subtract(groups_.mesh(), options_.data, options_.copies));
  if (inside > 1) text += fmt::format(" -> dense sum over {} ranks", inside);
  if (config().local_clip) {
    text += fmt::format(" -> local clip to {:.4g}", options_.grad_clip_norm / std::sqrt(copies()));
  }
  text += fmt::format(" -> {} -> global norm, clip -> optimizer", method());
  std::size_t all = terms_.size();
  for (const CopySet& set : sets_) all += set.rest.size();
  text += fmt::format("; {} of {} parameters compressed", terms_.size(), all);
  for (const CopySet& set : sets_) {
    if (&set != sets_.data())
      text += fmt::format(", {} of them (experts) over {} copies", set.end - set.begin, set.exchange.copies());
  }
  if (config().start > 0) text += fmt::format(", dense until step {}", config().start);
  return text;
}

double CompressedReducer::sent_bytes(const Bucket& bucket, int /*launches*/) const {
  if (!bucket.trainable) return 0;
  const auto width = static_cast<double>(c10::elementSize(bucket.gradient_type));
  const auto dense = [&](double elements, int ranks) { return 2.0 * (ranks - 1) / ranks * elements * width; };
  const comm::Group* inside = inside_of(bucket);
  double sum = inside != nullptr ? dense(static_cast<double>(bucket.elements), inside->size()) : 0;
  for (const Term& term : terms_) {
    if (term.bucket == &bucket) sum += term_bytes(term);
  }
  const CopySet& set = set_of(bucket);
  for (const auto& [other, member] : set.rest) {
    if (other == &bucket)
      sum += dense(static_cast<double>(layout::local_elements(member->param->placement)), set.exchange.copies());
  }
  return sum;
}

std::vector<CompressedPart> CompressedReducer::compressed_parts() const {
  std::vector<CompressedPart> parts;
  for (const Term& term : terms_) {
    parts.push_back({.name = term.param->name,
                     .placement = term.param->placement,
                     .rows = term.rows,
                     .columns = term.columns,
                     .shard = shard(*term.param),
                     .copies = term.copies,
                     .first = is_first_of_copies(groups_, options_, *term.param)});
  }
  return parts;
}

int CompressedReducer::shard(const nn::Param& param) const { return shard_of(groups_, options_, param); }

void CompressedReducer::begin_step(std::int64_t step) {
  step_ = step;
  dense_step_ = is_dense(step);
  exchanged_ = false;
}

void CompressedReducer::launch(Bucket& bucket) {
  comm::Group* inside = inside_of(bucket);
  if (dense_step_ && !(keeps_dense() && inside != nullptr)) {
    before_dense(bucket);
    dense_->launch(bucket);
  } else if (inside != nullptr) {
    bucket.work = inside->all_reduce(device::to_buffer(bucket.sending), comm::Reduce::kSum);
  }
}

void CompressedReducer::settle(Bucket& bucket) {
  if (dense_step_) {
    if (keeps_dense() && inside_of(bucket) != nullptr) {
      bucket.work.wait();
      bucket.work = {};
      before_dense(bucket);
      CopyExchange& exchange = set_of(bucket).exchange;
      exchange.sum(bucket.sending);
      exchange.take_sent_bytes();  // counted as dense below
      bucket.arriving =
          options_.zero > 0 ? bucket.sending.narrow(0, bucket.begin, bucket.end - bucket.begin) : bucket.sending;
    } else {
      dense_->settle(bucket);
    }
    const double bytes = dense_->sent_bytes(bucket, 1);
    report_.sent_bytes += bytes;
    report_.dense_bytes += bytes;
    return;
  }
  if (!std::exchange(exchanged_, true)) exchange_all();
  report_.dense_bytes += dense_->sent_bytes(bucket, 1);
  if (const comm::Group* inside = inside_of(bucket))
    report_.sent_bytes += 2.0 * (inside->size() - 1) / inside->size() * static_cast<double>(bucket.sending.nbytes());
  bucket.arriving =
      options_.zero > 0 ? bucket.sending.narrow(0, bucket.begin, bucket.end - bucket.begin) : bucket.sending;
}

void CompressedReducer::finish(std::span<Bucket> buckets) {
  if (dense_step_) dense_->finish(buckets);
}

void CompressedReducer::exchange_all() {
  const auto begin = std::chrono::steady_clock::now();
  wait_inside();
  if (config().local_clip) clip_locally();
  for (Term& term : terms_) {
    term.data = term.part_of(term.bucket->sending);
    report_.elements += term.elements();
  }
  begin_errors();
  before_rest();
  for (CopySet& set : sets_) start_rest(set);  // their latency passes beside the method's own exchanges
  for (CopySet& set : sets_) {
    exchange_ = &set.exchange;
    if (set.end > set.begin) reduce(terms().subspan(set.begin, set.end - set.begin));
    finish_rest(set);
    report_.sent_bytes += set.exchange.take_sent_bytes();
  }
  exchange_ = &sets_.front().exchange;
  read_errors();
  for (Term& term : terms_) term.data = at::Tensor();
  if (!terms_.empty()) ++report_.rounds;
  report_.seconds += seconds_since(begin);
}

void CompressedReducer::wait_inside() {
  for (Bucket& bucket : plan_.buckets) {
    if (!bucket.trainable || inside_of(bucket) == nullptr) continue;
    bucket.work.wait();
    bucket.work = {};
  }
}

/// body(part of the flat sum, the gradient) of each.
template <typename Body>
void CompressedReducer::for_rest(CopySet& set, Body&& body) {
  std::int64_t at = 0;
  for (const auto& [bucket, member] : set.rest) {
    const std::int64_t size = layout::local_elements(member->param->placement);
    body(set.rest_sum.narrow(0, at, size), bucket->sending.narrow(0, member->offset, size), *member->param);
    at += size;
  }
}

void CompressedReducer::start_rest(CopySet& set) {
  std::int64_t elements = 0;
  for (const auto& [bucket, member] : set.rest) elements += layout::local_elements(member->param->placement);
  if (elements == 0) return;
  set.rest_sum = at::empty({elements}, set.rest.front().first->sending.options());
  for_rest(set, [](at::Tensor in_flat, const at::Tensor& gradient, const nn::Param&) { in_flat.copy_(gradient); });
  set.rest_work = set.exchange.start_sum(set.rest_sum);
}

void CompressedReducer::finish_rest(CopySet& set) {
  if (!set.rest_sum.defined()) return;
  set.rest_work.wait();
  set.rest_work = {};
  for_rest(set, [&](const at::Tensor& in_flat, at::Tensor gradient, const nn::Param& param) {
    gradient.copy_(in_flat);
    after_rest(param, gradient);
  });
  set.rest_sum = at::Tensor();
}

/// By the norm of this copy's gradient (Lin et al. 2018, section 3.2): of N independent gradients whose sum has the
/// norm that is clipped to, each has about 1 / sqrt(N) of it.
void CompressedReducer::clip_locally() {
  double squares = 0;
  for (const Bucket& bucket : plan_.buckets) {
    if (bucket.trainable) squares += squared(bucket.sending);
  }
  const double limit = options_.grad_clip_norm / std::sqrt(copies()), norm = std::sqrt(squares);
  if (!(norm > limit)) return;
  for (Bucket& bucket : plan_.buckets) {
    if (bucket.trainable) bucket.sending.mul_(limit / norm);
  }
}

void CompressedReducer::note_error(const Term& term, double left_squared, double whole_squared) {
  report_.errors.emplace_back(term.param->name, whole_squared > 0 ? std::sqrt(left_squared / whole_squared) : 0);
  left_squared_ += left_squared;
  whole_squared_ += whole_squared;
}

void CompressedReducer::note_error(const Term& term, at::Tensor left_squared, at::Tensor whole_squared) {
  unread_errors_.emplace_back(&term, std::pair(std::move(left_squared), std::move(whole_squared)));
}

void CompressedReducer::begin_errors() {
  report_.errors.clear();
  left_squared_ = whole_squared_ = 0;
}

void CompressedReducer::read_errors() {
  std::vector<at::Tensor> numbers;
  for (const auto& [term, squares] : unread_errors_) {
    numbers.push_back(squares.first);
    numbers.push_back(squares.second);
  }
  if (!numbers.empty()) {
    const at::Tensor here = at::stack(numbers).cpu();
    const auto* at = here.const_data_ptr<double>();
    for (const auto& [term, squares] : std::exchange(unread_errors_, {})) {
      note_error(*term, at[0], at[1]);
      at += 2;
    }
  }
  report_.relative_error = whole_squared_ > 0 ? std::sqrt(left_squared_ / whole_squared_) : 0;
}

}  // namespace trireme::parallel
