"""3_groups.parquet + the round's policy -> 4_checkpoint/<objective>/epoch_NN: DeepSpeed on the configured objective."""
