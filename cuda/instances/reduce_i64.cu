#include "reduce.inl"

template int rowwise::launch_reduce<rowwise::i64>(const rw_reduce_params&, void*, bool);
