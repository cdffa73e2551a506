#define TRIREME_SUM_ROWS_TABLE kSumRowsV4Bf16
#include "trireme/kernels/cpu/sum_rows_body.h"
