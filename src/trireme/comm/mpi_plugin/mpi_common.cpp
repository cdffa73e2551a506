#include "trireme/comm/mpi_plugin/mpi_common.h"

#include "trireme/base/error.h"
#include "trireme/comm/arithmetic/arithmetic.h"

namespace trireme::comm {
namespace {

template <DType kType, Reduce kReduce>
void combine(void* in, void* inout, int* count, MPI_Datatype*) {
  arithmetic(kType, kReduce).combine(inout, in, inout, static_cast<std::size_t>(*count));
}

/// Types and operations that MPI lacks, or leaves open: half precision, and minimum and maximum of NaN and of the two
/// zeros.
struct OwnTypes {
  MPI_Datatype f16, bf16;  // distinct from each other, so that MPI tells mismatches apart
  MPI_Op half[2][4];       // f16, bf16: sum, min, max, prod
  MPI_Op extremes[2][2];   // f32, f64: min, max

  OwnTypes() {
    for (MPI_Datatype* type : {&f16, &bf16}) {
      MPI_Type_contiguous(2, MPI_BYTE, type);
      MPI_Type_commit(type);
    }
    make_all<DType::kF16>(half[0]);
    make_all<DType::kBF16>(half[1]);
    make<DType::kF32, Reduce::kMin>(extremes[0][0]);
    make<DType::kF32, Reduce::kMax>(extremes[0][1]);
    make<DType::kF64, Reduce::kMin>(extremes[1][0]);
    make<DType::kF64, Reduce::kMax>(extremes[1][1]);
  }
  template <DType kType, Reduce kReduce>
  static void make(MPI_Op& op) {
    MPI_Op_create(&combine<kType, kReduce>, /*commute=*/1, &op);
  }
  template <DType kType>
  static void make_all(MPI_Op (&ops)[4]) {
    make<kType, Reduce::kSum>(ops[0]);
    make<kType, Reduce::kMin>(ops[1]);
    make<kType, Reduce::kMax>(ops[2]);
    make<kType, Reduce::kProd>(ops[3]);
  }
};

const OwnTypes& own_types() {
  static const OwnTypes types;  // lives as long as MPI does; MPI frees it
  return types;
}

}  // namespace

void check_mpi(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError(fmt::format("{}: {}", what, std::string(text, static_cast<std::size_t>(length))));
}

std::recursive_mutex& mpi_calls() {
  static std::recursive_mutex mutex;  // MPI is one a process, and so is this
  return mutex;
}

MPI_Datatype mpi_type(DType type) {
  switch (type) {
    case DType::kF32:
      return MPI_FLOAT;
    case DType::kF64:
      return MPI_DOUBLE;
    case DType::kF16:
      return own_types().f16;
    case DType::kBF16:
      return own_types().bf16;
    case DType::kI32:
      return MPI_INT32_T;
    case DType::kI64:
      return MPI_INT64_T;
    case DType::kU8:
      return MPI_UINT8_T;
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op mpi_op(DType type, Reduce reduce) {
  const int which = reduce == Reduce::kMin ? 1 : reduce == Reduce::kMax ? 2 : reduce == Reduce::kProd ? 3 : 0;
  if (type == DType::kF16 || type == DType::kBF16) return own_types().half[type == DType::kF16 ? 0 : 1][which];
  if ((type == DType::kF32 || type == DType::kF64) && (which == 1 || which == 2)) {
    return own_types().extremes[type == DType::kF32 ? 0 : 1][which - 1];
  }
  const MPI_Op ops[] = {MPI_SUM, MPI_MIN, MPI_MAX, MPI_PROD};
  return ops[which];
}

}  // namespace trireme::comm
