#include "trireme/parallel/compress/compressed_reducer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "trireme/base/error.h"
#include "trireme/base/stopwatch.h"
#include "trireme/device/tensor_buffer.h"
#include "trireme/layout/reduction.h"

namespace trireme::parallel {

bool is_compressed(const nn::Param& param, const spec::CompressConfig& config) {
  return param.placement.shape.size() >= 2 && param.elements() >= config.min_elements;
}

double squared(const at::Tensor& tensor) {
  const double norm = at::linalg_vector_norm(tensor, 2, {}, false, at::kDouble).item<double>();
  return norm * norm;
}

at::Tensor squares_of(const at::Tensor& tensor) {
  return at::linalg_vector_norm(tensor, 2, {}, false, at::kDouble).square_();
}

CompressedReducer::CompressedReducer(const ReducerParts& parts)
    : options_(parts.options),
      plan_(parts.plan),
      groups_(parts.groups),
      dense_(make_dense_reducer(parts)),
      exchange_(nullptr) {
  TRIREME_CHECK(options_.zero <= 1 && !options_.offload && !options_.reduce_bf16,
                "ZeRO {} or offload with compression is refused by spec/rules", options_.zero);
  const layout::Mesh& mesh = groups_.mesh();
  const layout::AxisNames inside = layout::subtract(mesh, options_.data, options_.copies);
  groups_.agree_on({options_.copies, inside});
  exchange_ = CopyExchange(groups_.along(options_.copies));
  inside_ = groups_.along(inside);
  for (Bucket& bucket : plan_.buckets) {
    if (!bucket.trainable) continue;
    TRIREME_CHECK(layout::subtract(mesh, options_.data, bucket.axes).empty(),
                  "{} is not summed over all data-parallel ranks", bucket.members.front().param->name);
    for (BucketMember& member : bucket.members) {
      const std::vector<std::int64_t> shape = nn::local_shape(member.param->placement);
      const std::int64_t elements = layout::local_elements(member.param->placement);
      if (!is_compressed(*member.param, config()) || is_replicated(*member.param) || elements == 0) {
        rest_.emplace_back(&bucket, &member);
        continue;
      }
      terms_.push_back({.param = member.param,
                        .bucket = &bucket,
                        .member = &member,
                        .rows = shape.front(),
                        .columns = elements / shape.front()});
    }
  }
  std::ranges::sort(terms_, {}, [](const Term& term) { return term.param->name; });
  std::ranges::sort(rest_, {}, [](const auto& entry) { return entry.second->param->name; });
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
  if (inside_ != nullptr) text += fmt::format(" -> dense sum over {} ranks", inside_->size());
  if (config().local_clip) {
    text += fmt::format(" -> local clip to {:.4g}", options_.grad_clip_norm / std::sqrt(exchange_.copies()));
  }
  text += fmt::format(" -> {} -> global norm, clip -> optimizer", method());
  text += fmt::format("; {} of {} parameters compressed", terms_.size(), terms_.size() + rest_.size());
  if (config().start > 0) text += fmt::format(", dense until step {}", config().start);
  return text;
}

double CompressedReducer::sent_bytes(const Bucket& bucket, int /*launches*/) const {
  if (!bucket.trainable) return 0;
  const auto width = static_cast<double>(c10::elementSize(bucket.gradient_type));
  const auto dense = [&](double elements, int ranks) { return 2.0 * (ranks - 1) / ranks * elements * width; };
  double sum = inside_ != nullptr ? dense(static_cast<double>(bucket.elements), inside_->size()) : 0;
  for (const Term& term : terms_) {
    if (term.bucket == &bucket) sum += term_bytes(term);
  }
  for (const auto& [other, member] : rest_) {
    if (other == &bucket)
      sum += dense(static_cast<double>(layout::local_elements(member->param->placement)), exchange_.copies());
  }
  return sum;
}

std::vector<CompressedPart> CompressedReducer::compressed_parts() const {
  std::vector<CompressedPart> parts;
  for (const Term& term : terms_)
    parts.push_back({term.param->name, term.param->placement, term.rows, term.columns, shard()});
  return parts;
}

int CompressedReducer::shard() const {
  const layout::Mesh& mesh = groups_.mesh();
  return mesh.index_in_group(groups_.rank(), layout::subtract(mesh, mesh.wide_axes(), options_.data));
}

void CompressedReducer::begin_step(std::int64_t step) {
  step_ = step;
  dense_step_ = is_dense(step);
  exchanged_ = false;
}

void CompressedReducer::launch(Bucket& bucket) {
  if (dense_step_ && !(keeps_dense() && inside_ != nullptr)) {
    before_dense(bucket);
    dense_->launch(bucket);
  } else if (inside_ != nullptr) {
    bucket.work = inside_->all_reduce(device::to_buffer(bucket.sending), comm::Reduce::kSum);
  }
}

void CompressedReducer::settle(Bucket& bucket) {
  if (dense_step_) {
    if (keeps_dense() && inside_ != nullptr) {
      bucket.work.wait();
      bucket.work = {};
      before_dense(bucket);
      exchange_.sum(bucket.sending);
      exchange_.take_sent_bytes();  // counted as dense below
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
  if (inside_ != nullptr)
    report_.sent_bytes += 2.0 * (inside_->size() - 1) / inside_->size() * static_cast<double>(bucket.sending.nbytes());
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
  start_rest();  // its latency passes beside the method's own exchanges
  reduce(terms_);
  finish_rest();
  read_errors();
  for (Term& term : terms_) term.data = at::Tensor();
  if (!terms_.empty()) ++report_.rounds;
  report_.sent_bytes += exchange_.take_sent_bytes();
  report_.seconds += seconds_since(begin);
}

void CompressedReducer::wait_inside() {
  for (Bucket& bucket : plan_.buckets) {
    if (!bucket.trainable || inside_ == nullptr) continue;
    bucket.work.wait();
    bucket.work = {};
  }
}

/// body(part of the flat sum, the gradient) of each.
template <typename Body>
void CompressedReducer::for_rest(Body&& body) {
  std::int64_t at = 0;
  for (const auto& [bucket, member] : rest_) {
    const std::int64_t size = layout::local_elements(member->param->placement);
    body(rest_sum_.narrow(0, at, size), bucket->sending.narrow(0, member->offset, size), *member->param);
    at += size;
  }
}

void CompressedReducer::start_rest() {
  std::int64_t elements = 0;
  for (const auto& [bucket, member] : rest_) elements += layout::local_elements(member->param->placement);
  if (elements == 0) return;
  rest_sum_ = at::empty({elements}, rest_.front().first->sending.options());
  for_rest([](at::Tensor in_flat, const at::Tensor& gradient, const nn::Param&) { in_flat.copy_(gradient); });
  rest_work_ = exchange_.start_sum(rest_sum_);
}

void CompressedReducer::finish_rest() {
  if (!rest_sum_.defined()) return;
  rest_work_.wait();
  rest_work_ = {};
  for_rest([&](const at::Tensor& in_flat, at::Tensor gradient, const nn::Param& param) {
    gradient.copy_(in_flat);
    after_rest(param, gradient);
  });
  rest_sum_ = at::Tensor();
}

/// By the norm of this copy's gradient (Lin et al. 2018, section 3.2): of N independent gradients whose sum has the
/// norm that is clipped to, each has about 1 / sqrt(N) of it.
void CompressedReducer::clip_locally() {
  double squares = 0;
  for (const Bucket& bucket : plan_.buckets) {
    if (bucket.trainable) squares += squared(bucket.sending);
  }
  const double limit = options_.grad_clip_norm / std::sqrt(exchange_.copies()), norm = std::sqrt(squares);
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
