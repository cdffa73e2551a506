#define TRIREME_SUM_ROWS_TABLE kSumRowsV4
#include "trireme/kernels/cpu/sum_rows_body.h"
