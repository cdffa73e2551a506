#define TRIREME_SUM_ROWS_TABLE kSumRowsPlain
#include "trireme/kernels/cpu/sum_rows_body.h"
