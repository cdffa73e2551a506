#include "trireme/comm/mpi_plugin/mpi_common.h"

#include "trireme/base/error.h"
#include "trireme/comm/arithmetic/arithmetic.h"

namespace trireme::comm {
namespace {

template <DType kType, Reduce kReduce>
void combine(void* in, void* inout, int* count, MPI_Datatype*) {
  arithmetic(kType, kReduce).combine(inout, in, inout, static_cast<std::size_t>(*count));
}

struct HalfTypes {
  MPI_Datatype types[2];  // f16, bf16: distinct from each other, so that MPI tells mismatches apart
  MPI_Op ops[2][4];       // sum, min, max, prod

  HalfTypes() {
    for (MPI_Datatype& type : types) {
      MPI_Type_contiguous(2, MPI_BYTE, &type);
      MPI_Type_commit(&type);
    }
    const auto make = [](MPI_User_function* function, MPI_Op& op) { MPI_Op_create(function, /*commute=*/1, &op); };
    make(&combine<DType::kF16, Reduce::kSum>, ops[0][0]);
    make(&combine<DType::kF16, Reduce::kMin>, ops[0][1]);
    make(&combine<DType::kF16, Reduce::kMax>, ops[0][2]);
    make(&combine<DType::kF16, Reduce::kProd>, ops[0][3]);
    make(&combine<DType::kBF16, Reduce::kSum>, ops[1][0]);
    make(&combine<DType::kBF16, Reduce::kMin>, ops[1][1]);
    make(&combine<DType::kBF16, Reduce::kMax>, ops[1][2]);
    make(&combine<DType::kBF16, Reduce::kProd>, ops[1][3]);
  }
};

const HalfTypes& half_types() {
  static const HalfTypes types;  // lives as long as MPI does; MPI frees it
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

MPI_Datatype mpi_type(DType type) {
  switch (type) {
    case DType::kF32:
      return MPI_FLOAT;
    case DType::kF64:
      return MPI_DOUBLE;
    case DType::kF16:
      return half_types().types[0];
    case DType::kBF16:
      return half_types().types[1];
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
  if (type == DType::kF16 || type == DType::kBF16) return half_types().ops[type == DType::kF16 ? 0 : 1][which];
  const MPI_Op ops[] = {MPI_SUM, MPI_MIN, MPI_MAX, MPI_PROD};
  return ops[which];
}

}  // namespace trireme::comm
