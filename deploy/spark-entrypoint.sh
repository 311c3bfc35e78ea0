#!/bin/sh
# Starts what Spark on Kubernetes asks an image for, a driver or an executor; other words are a command of the pipeline.
set -eu
spark=$(python -c 'import pyspark; print(pyspark.__path__[0])')
case ${1:-} in
driver)
  shift
  exec spark-submit --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
  ;;
executor)
  options=$(env | sed -n 's/^SPARK_JAVA_OPT_[0-9]*=//p' | sort | tr '\n' ' ')
  # shellcheck disable=SC2086 # each option is a word
  exec java $options "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CONF_DIR:-/opt/spark/conf}:$spark/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
  ;;
*)
  exec python -m sea_mq_worker pipeline "$@"
  ;;
esac
