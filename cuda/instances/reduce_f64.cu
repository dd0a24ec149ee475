#include "reduce.inl"

template int rowwise::launch_reduce<double>(const rw_reduce_params&, void*, bool);
