SELECT relation,
       name,
       format_type(type, NULL) AS expected,
       to_regclass(relation) IS NOT NULL AS relation_exists,
       format_type(atttypid, NULL) AS got,
       has_column_privilege(attrelid, attnum, 'SELECT') AS readable
FROM column_read
LEFT JOIN pg_attribute ON attrelid = to_regclass(relation) AND attname = name AND NOT attisdropped
ORDER BY relation COLLATE "C", name COLLATE "C"
